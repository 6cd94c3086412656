use super::*;
use crate::sampling::SamplingParams;

#[test]
fn each_row_is_sampled_as_by_itself() {
    let backend = backend(3);
    let logits = noise(1, 20 * 100);
    let params = SamplingParams { temperature: 1.0, top_k: 50, ..SamplingParams::default() };
    let rows: Vec<SampleRow<'_>> = (0..20).map(|seed| SampleRow { top: 3, ..SampleRow::new(&params, seed) }).collect();
    let got = backend.sample(&tensor(&backend, 20, &logits), &backend.upload(Batch::default(), &[]), &rows).unwrap();
    let softmaxes = Softmax::of_rows(&logits, 100, &backend);
    let rows = logits.chunks(100).zip(&rows).zip(softmaxes);
    let want: Vec<Sampled> =
        rows.map(|((l, row), softmax)| sample_row(l, softmax, row, &mut Vec::new()).unwrap()).collect();
    assert_eq!(got, want);
}
