use super::*;
use crate::sampling::{SamplingParams, sample_row};

#[test]
fn each_row_is_sampled_as_by_itself() {
    let backend = backend(3);
    let logits = noise(1, 20 * 100);
    let params = SamplingParams { temperature: 1.0, top_k: 50, ..SamplingParams::default() };
    let rows: Vec<SampleRow<'_>> = (0..20).map(|seed| SampleRow { top: 3, ..SampleRow::new(&params, seed) }).collect();
    let got = backend.sample(&tensor(&backend, 20, &logits), &backend.upload(Batch::default(), &[]), &rows).unwrap();
    let want: Vec<Sampled> =
        logits.chunks(100).zip(&rows).map(|(l, row)| sample_row(l, row, &mut Vec::new()).unwrap()).collect();
    assert_eq!(got, want);
}
