#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::DType;
use engine::tools::parallel::Shard;

use super::*;
use crate::cache_plan;
use crate::model::ModelShape;

const GIB: usize = 1 << 30;

fn model(name: &str) -> (KvLayout, Work) {
    let config = ModelShape::find(name).unwrap().config;
    let layout = cache_plan::layout(&config, Shard::WHOLE, BLOCK_SIZE, DType::F16.into()).unwrap();
    (layout, Work::new(&config).unwrap())
}

/// The tokens that a prompt has in common with earlier texts, in whole blocks.
fn known(trace: &[SessionRequest]) -> f64 {
    let (mut numbering, mut seen) = (Numbering::new(BLOCK_SIZE), std::collections::HashSet::new());
    let mut known = 0;
    for request in trace {
        let asked = numbering.ask(request);
        known += asked.blocks[..asked.most_hits()].iter().take_while(|block| seen.contains(*block)).count();
        seen.extend(asked.blocks);
    }
    (known * BLOCK_SIZE) as f64
}

#[test]
fn every_rule_finds_all_known_tokens_in_a_large_memory() {
    let (layout, work) = model("gemma-3-12b");
    for kind in [Kind::Conversations, Kind::Agents] {
        let trace = requests(kind, 60, 8, 1);
        let want = known(&trace);
        let bytes = 100 * GIB;
        let tokens = |replay: &mut dyn Replay| Saved::by(replay, &trace, &work).tokens;
        assert!(want > 0.3 * Saved::all(&trace, &work).tokens, "{kind:?}");
        assert_eq!(tokens(&mut PagedReplay::new(&layout, bytes)), want, "{kind:?}");
        for order in [Order::Forward, Order::Reverse] {
            assert_eq!(tokens(&mut QueuedReplay::new(&layout, bytes, order)), want, "{kind:?}, {order:?}");
        }
        assert_eq!(bound(&trace, &layout, &work, bytes).tokens, want, "{kind:?}");
    }
}

#[test]
fn no_rule_is_better_than_the_bound() {
    for (kind, name) in [
        (Kind::Conversations, "gemma-3-12b"),
        (Kind::Agents, "gemma-3-12b"),
        (Kind::Conversations, "qwen3.5-35b-a3b"),
        (Kind::Agents, "qwen3.5-35b-a3b"),
    ] {
        let (layout, work) = model(name);
        let trace = requests(kind, 150, 24, 2);
        let bytes = 6 * GIB;
        let bound = bound(&trace, &layout, &work, bytes);
        let of = |replay: &mut dyn Replay| Saved::by(replay, &trace, &work);
        let paged = of(&mut PagedReplay::new(&layout, bytes));
        let queued = [Order::Forward, Order::Reverse].map(|order| of(&mut QueuedReplay::new(&layout, bytes, order)));
        for saved in queued.into_iter().chain([paged]) {
            assert!(saved.tokens <= bound.tokens && saved.flops <= bound.flops, "{kind:?}: {saved:?}, {bound:?}");
        }
        assert!(queued[0].tokens < known(&trace), "{kind:?}: the memory is too small for all");
        // In so small a memory the queue saves 5 % more of the agents' tokens in a model with windows.
        if (kind, name) != (Kind::Agents, "gemma-3-12b") {
            assert!(queued[1].tokens < paged.tokens, "{kind:?}, {name}: {queued:?}, {paged:?}");
        }
    }
}

#[test]
fn a_trace_follows_from_its_seed() {
    let trace = |seed| requests(Kind::Agents, 40, 4, seed);
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
    assert!(trace(1).iter().all(|request| request.prompt > 0 && request.tokens().len() > request.prompt));
}

#[test]
fn operations_are_counted_within_windows() {
    let (_, work) = model("gemma-3-12b");
    // Of 48 layers, eight see all tokens. Heads have 16 times 256 elements.
    let attention = |tokens: usize| work.flops(tokens) - tokens as f64 * work.linear;
    assert_eq!(attention(1), 48.0 * 4.0 * 4096.0);
    assert_eq!(attention(1025) - attention(1024), (40.0 * 1024.0 + 8.0 * 1025.0) * 4.0 * 4096.0);
}
