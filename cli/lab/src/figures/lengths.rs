//! Figure 11: lengths of prompts and outputs.

use anyhow::Result;

use crate::chart::Chart;
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::laboratory::Lab;
use simulator::traces::{ALPACA_LIKE, SHAREGPT_LIKE, TraceWorkload};

/// Number of requests to draw, and tokens per bin of the density.
const REQUESTS: usize = 50_000;
const BIN: usize = 32;
/// The density is drawn up to this number of tokens.
const MOST: usize = 1024;

/// Returns the density of lengths, one point per bin.
fn density(lengths: &[usize]) -> Vec<(f64, f64)> {
    let mut bins = vec![0usize; MOST / BIN];
    for &length in lengths.iter().filter(|length| **length < MOST) {
        bins[length / BIN] += 1;
    }
    let point = |(at, n): (usize, &usize)| ((at as f64 + 0.5) * BIN as f64, *n as f64 / (lengths.len() * BIN) as f64);
    bins.iter().enumerate().map(point).collect()
}

fn mean(lengths: &[usize]) -> f64 {
    lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64
}

/// Draws the figure.
///
/// # Errors
/// Never.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cases: [(&str, TraceWorkload, [f64; 2]); 2] =
        [("ShareGPT", SHAREGPT_LIKE, [161.31, 337.99]), ("Alpaca", ALPACA_LIKE, [19.31, 58.45])];
    let mut table = FigureTable::new("Mean tokens", &["trace", "tokens of", "paper", "drawn"]);
    let (mut charts, mut means) = (Vec::new(), Vec::new());
    for (name, workload, paper) in cases {
        let (prompts, outputs): (Vec<_>, Vec<_>) =
            lab.published.of(&workload).lengths(REQUESTS, lab.seed).into_iter().unzip();
        let mut lines = Vec::new();
        for ((kind, lengths), paper) in [("prompts", prompts), ("outputs", outputs)].into_iter().zip(paper) {
            table.row([name.into(), kind.into(), format!("{paper:.2}"), format!("{:.2}", mean(&lengths))]);
            lines.push((kind.to_owned(), density(&lengths)));
            means.push(mean(&lengths));
        }
        charts.push(Chart::lines(name, "tokens", "density", lines));
    }
    table.row(["ShareGPT / Alpaca".into(), "prompts".into(), "8.4x".into(), format!("{:.2}x", means[0] / means[2])]);
    table.row(["ShareGPT / Alpaca".into(), "outputs".into(), "5.8x".into(), format!("{:.2}x", means[1] / means[3])]);
    Ok(Figure {
        number: "11",
        title: "lengths of prompts and outputs",
        origin: FigureOrigin::Computed,
        paper: "ShareGPT's prompts are 8.4 times as long as Alpaca's on average, and its outputs 5.8 times. Its \
                lengths vary more."
            .into(),
        notes: vec![
            "Without a file of the data set's lengths, the means are the paper's and the shape is an assumption: a \
             log-normal distribution whose logarithm has a standard deviation of 0.8, cut at 1,023 tokens. The paper only \
             draws the densities."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use simulator::traces::PublishedLengths;

    #[test]
    fn lengths_have_the_papers_ratios() {
        let means = |workload: TraceWorkload| {
            let (prompts, outputs): (Vec<_>, Vec<_>) = workload.lengths(20_000, 3).into_iter().unzip();
            [mean(&prompts), mean(&outputs)]
        };
        let (long, short) = (means(SHAREGPT_LIKE), means(ALPACA_LIKE));
        assert!((long[0] / short[0] - 8.4).abs() < 0.5 && (long[1] / short[1] - 5.8).abs() < 0.4, "{long:?} {short:?}");
    }

    #[test]
    fn published_lengths_replace_similar_ones() {
        let alpaca = TraceWorkload::Listed(vec![(3, 7)]);
        let published = PublishedLengths { alpaca: Some(&alpaca), ..PublishedLengths::default() };
        let lab = Lab { seed: 1, seconds: 1.0, published, progress: &|_| {} };
        let text = figure(&lab).unwrap().text();
        assert!(text.contains("| Alpaca | outputs | 58.45 | 7.00 |"), "{text}");
        assert_eq!(published.of(&SHAREGPT_LIKE), &SHAREGPT_LIKE);
    }

    #[test]
    fn densities_sum_to_one() {
        let sum: f64 = density(&[1, 31, 32, 500, 1023]).iter().map(|(_, density)| density * BIN as f64).sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }
}
