//! Figure 1: how a GPU's memory is used, and how many requests fit.

use anyhow::Result;

use crate::chart::{Chart, ChartData};
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::laboratory::Lab;
use simulator::cost::{StepCost, StepLoad};
use simulator::deployment::OPT_13B;
use simulator::efficiency::PAGED_ATTENTION;
use simulator::gpu;
use simulator::traces::SHAREGPT_LIKE;

/// Numbers of requests in the right-hand part.
const BATCHES: [usize; 9] = [1, 2, 4, 7, 10, 15, 20, 30, 40];
/// Number of requests that lengths are averaged over.
const REQUESTS: usize = 20_000;
const GIB: f64 = (1u64 << 30) as f64;

/// Draws the figure.
///
/// # Errors
/// Never: the model and the GPU are built in.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cost = OPT_13B.cost()?.with_attention_factor(PAGED_ATTENTION);
    let memory = gpu::named(OPT_13B.gpu).map_or(0.0, |gpu| gpu.memory);
    let (weights, cache) = (cost.weight_bytes() as f64, OPT_13B.slots as f64 * cost.token_bytes());
    let mut left = FigureTable::new("OPT-13B on an A100 of 40 GB", &["part", "GiB", "share", "paper"]);
    let parts = [
        ("weights", weights, "26 GB, 65 %"),
        ("KV cache", cache, "more than 30 %"),
        ("others", memory - weights - cache, "the rest"),
    ];
    for (name, bytes, paper) in parts {
        left.row([
            name.into(),
            format!("{:.1}", bytes / GIB),
            format!("{:.1} %", 100.0 * bytes / memory),
            paper.into(),
        ]);
    }
    // Mean tokens of a running request over its time. Requests with longer outputs run longer, so they weigh more.
    let lengths = lab.published.of(&SHAREGPT_LIKE).lengths(REQUESTS, lab.seed);
    let steps: f64 = lengths.iter().map(|(_, output)| *output as f64).sum();
    let tokens = |&(prompt, output): &(usize, usize)| output as f64 * (prompt as f64 + output as f64 / 2.0);
    let mean = lengths.iter().map(tokens).sum::<f64>() / steps;
    let mut right = FigureTable::new(
        "Requests at a time, ShareGPT-like lengths",
        &["requests", "reserved for the longest, GiB", "paged, GiB", "tokens/s"],
    );
    let mut lines = [Vec::new(), Vec::new(), Vec::new()];
    for batch in BATCHES {
        let gib_used = |tokens: f64| (weights + batch as f64 * tokens * cost.token_bytes()) / GIB;
        // On average half a block is empty.
        let (reserved, paged) = (gib_used(OPT_13B.max_len as f64), gib_used(mean + 8.0));
        let load = StepLoad {
            decodes: batch,
            decode_context: (batch as f64 * mean) as u64,
            logits: batch,
            ..StepLoad::default()
        };
        let rate = batch as f64 / cost.seconds(&load);
        right.row([batch.to_string(), format!("{reserved:.1}"), format!("{paged:.1}"), format!("{rate:.0}")]);
        [reserved, paged, rate].into_iter().zip(&mut lines).for_each(|(y, line)| line.push((batch as f64, y)));
    }
    let [reserved, paged, rate] = lines;
    let gib = |bytes: f64| vec![bytes / GIB];
    let stack = parts.iter().map(|(name, bytes, _)| ((*name).to_owned(), gib(*bytes))).collect();
    let data = ChartData::Stacked(vec!["memory".into()], stack);
    let layout = Chart { top: Some(memory / GIB), ..Chart::new("OPT-13B on an A100 of 40 GB", "", "GiB", data) };
    let use_of = vec![("reserved for the longest".to_owned(), reserved), ("paged".to_owned(), paged)];
    let growth =
        Chart { top: Some(memory / GIB), ..Chart::lines("Memory in use", "requests at a time", "GiB", use_of) };
    let throughput = Chart::lines("Throughput", "requests at a time", "tokens/s", vec![("simulated".to_owned(), rate)]);
    Ok(Figure {
        number: "1",
        title: "the use of memory, and its effect on batches",
        origin: FigureOrigin::Computed,
        paper: "Weights take 65 % of the memory permanently. Keys and values take more than 30 % and come and go with \
                requests. Everything else takes little. In existing systems memory grows fast with the batch. vLLM smooths \
                this growth, and reaches more throughput."
            .into(),
        notes: vec![format!(
            "A running request has {mean:.0} tokens on average. The KV cache has the slots of the paper's table 1. A \
             token's keys and values take {:.0} KiB.",
            cost.token_bytes() / 1024.0
        )],
        tables: vec![left, right],
        charts: vec![layout, growth, throughput],
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn opt_13b_takes_what_the_paper_says() {
        let cost = OPT_13B.cost().unwrap();
        assert_eq!(cost.token_bytes(), 800.0 * 1024.0);
        let memory = gpu::named(OPT_13B.gpu).unwrap().memory;
        let weights = cost.weight_bytes() as f64 / memory;
        assert!((weights - 0.6).abs() < 0.06, "{weights}");
        let cache = OPT_13B.slots as f64 * cost.token_bytes() / memory;
        assert!(cache > 0.29 && weights + cache < 0.95, "{cache}");
    }
}
