//! Properties of the engine over random schedules, against an oracle that never lies.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::collections::{BTreeMap, BTreeSet};

use engine::engine::{Engine, EngineConfig};
use engine::group::RequestId;
use engine::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::scheduler::Preemption;
use engine::sequence::Output;
use oracle::{Oracle, VOCAB, config};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Request {
    prompt: Vec<u32>,
    params: SamplingParams,
    /// The step before which it arrives.
    arrives: usize,
    /// The step before which it is cancelled.
    aborted: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    block_size: usize,
    /// Blocks beyond what the greatest request needs.
    spare_blocks: usize,
    max_batch_tokens: usize,
    max_num_seqs: usize,
    swap_blocks: usize,
    preemption: Preemption,
    prefix_caching: bool,
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let max_tokens = 1..30usize;
    let greedy = (max_tokens.clone(), any::<bool>()).prop_map(|(max_tokens, ignore_eos)| SamplingParams {
        max_tokens,
        ignore_eos,
        ..Default::default()
    });
    let sampled = (max_tokens.clone(), 1..5usize, 0..3usize, any::<u64>()).prop_map(|(max_tokens, n, more, seed)| {
        SamplingParams { max_tokens, n, best_of: n + more, temperature: 1.0, seed: Some(seed), ..Default::default() }
    });
    let stopping = prop_oneof![Just(EarlyStopping::Yes), Just(EarlyStopping::No), Just(EarlyStopping::Never)];
    let beams = (max_tokens, 1..5usize, stopping).prop_map(|(max_tokens, width, early_stopping)| SamplingParams {
        max_tokens,
        n: width,
        best_of: width,
        beam: Some(Beam { width, length_penalty: 1.0, early_stopping }),
        ..Default::default()
    });
    let logprobs = prop::option::weighted(0.3, 0..20usize);
    (prop_oneof![greedy, sampled, beams], logprobs).prop_map(|(params, logprobs)| SamplingParams { logprobs, ..params })
}

fn request() -> impl Strategy<Value = Request> {
    let prompt = prop::collection::vec(1..VOCAB, 1..40);
    (prompt, params(), 0..40usize, prop::option::weighted(0.2, 0..60usize))
        .prop_map(|(prompt, params, arrives, aborted)| Request { prompt, params, arrives, aborted })
}

fn setup() -> impl Strategy<Value = Setup> {
    let preemption = prop_oneof![Just(Preemption::Auto), Just(Preemption::Swap), Just(Preemption::Recompute)];
    (1..9usize, 0..20usize, 1..40usize, 7..24usize, 0..60usize, preemption, any::<bool>()).prop_map(
        |(block_size, spare_blocks, max_batch_tokens, max_num_seqs, swap_blocks, preemption, prefix_caching)| Setup {
            block_size,
            spare_blocks,
            max_batch_tokens,
            max_num_seqs,
            swap_blocks,
            preemption,
            prefix_caching,
        },
    )
}

/// Blocks that a request needs when its sequences share nothing but whole blocks of the prompt.
fn most_blocks(r: &Request, block_size: usize) -> usize {
    let shared = r.prompt.len() / block_size;
    shared + r.params.width() * ((r.prompt.len() + r.params.max_tokens).div_ceil(block_size) - shared)
}

fn engine(num_blocks: usize, s: Setup) -> Engine {
    let config = EngineConfig {
        swap_blocks: s.swap_blocks,
        preemption: s.preemption,
        prefix_caching: s.prefix_caching,
        max_num_seqs: s.max_num_seqs,
        max_batch_tokens: s.max_batch_tokens,
        ..config(num_blocks, s.block_size)
    };
    let oracle = Oracle::new(&config);
    Engine::new(config, oracle)
}

/// What a request gives with nobody else there.
fn alone(r: &Request) -> Vec<Output> {
    let config = config(100, 16);
    let oracle = Oracle::new(&config);
    let mut engine = Engine::new(config, oracle);
    engine.add(r.prompt.clone(), r.params.clone()).unwrap();
    loop {
        if let Some(done) = engine.step().unwrap().finished.pop() {
            return done.outputs;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_gives_each_request_what_it_gets_alone(
        requests in prop::collection::vec(request(), 1..12),
        setup in setup(),
    ) {
        let num_blocks = setup.spare_blocks + requests.iter().map(|r| most_blocks(r, setup.block_size)).max().unwrap();
        let mut engine = engine(num_blocks, setup);
        let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
        let mut outputs: BTreeMap<usize, Vec<Output>> = BTreeMap::new();
        let mut cancelled = BTreeSet::new();
        for step in 0.. {
            for (i, r) in requests.iter().enumerate() {
                if r.arrives == step {
                    ids.insert(engine.add(r.prompt.clone(), r.params.clone()).unwrap(), i);
                }
            }
            for (&id, &i) in &ids {
                if requests[i].aborted == Some(step) && !outputs.contains_key(&i) {
                    engine.abort(id);
                    cancelled.insert(i);
                }
            }
            let seqs = |e: &Engine| e.scheduler().running().iter().map(|g| g.running.len()).sum::<usize>();
            let (decoding, computed) = (seqs(&engine), engine.stats().computed_tokens);
            for done in engine.step().unwrap().finished {
                outputs.insert(ids[&done.id], done.outputs);
            }
            prop_assert!(engine.stats().computed_tokens - computed <= decoding.max(setup.max_batch_tokens));
            prop_assert!(seqs(&engine) <= setup.max_num_seqs);
            prop_assert_eq!(engine.scheduler().check_integrity(), Ok(()));
            if step > 60 && !engine.has_work() {
                break;
            }
            prop_assert!(step < 20_000, "no progress");
        }
        prop_assert_eq!(outputs.len(), requests.len(), "a request was lost");
        for (i, got) in outputs.into_iter().filter(|(i, _)| !cancelled.contains(i)) {
            prop_assert_eq!(got, alone(&requests[i]));
        }
    }
}
