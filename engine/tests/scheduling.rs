//! Properties of the engine over random schedules, against an oracle that never lies.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod follower;
mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use engine::engine::{Engine, EngineConfig, Finished};
use engine::group::{OwnerId, RequestId};
use engine::kv::CacheChanges;
use engine::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::scheduler::{Preemption, SchedulerOptions};
use engine::sequence::{Output, PromptLogprobs};
use follower::Follower;
use oracle::{Memory, Oracle, VOCAB, config, contiguous, scheduler_options};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Request {
    prompt: Vec<u32>,
    params: SamplingParams,
    /// Which of the owners it belongs to.
    owner: usize,
    /// The step before which it arrives.
    arrives: usize,
    /// The step before which it is cancelled, or one of its outputs is stopped.
    cut: Option<(usize, Cut)>,
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    Abort,
    Stop { index: usize },
}

/// The beginning of a text that prompts and pinned prefixes have in common.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    text: u32,
    len: usize,
}

impl Beginning {
    fn tokens(self) -> Vec<u32> {
        // The third begins as the second does.
        let token = |i: u32| 1 + (i * i + i / 5 + if i < 17 { self.text / 2 } else { self.text }) % (VOCAB - 1);
        (0..self.len as u32).map(token).collect()
    }
}

fn beginning() -> impl Strategy<Value = Beginning> {
    (0..3u32, 0..40usize).prop_map(|(text, len)| Beginning { text, len })
}

#[derive(Clone, Debug)]
struct Setup {
    block_size: usize,
    /// Blocks beyond what a single sequence, or all beams of a request, may need.
    spare_blocks: usize,
    max_batch_tokens: usize,
    max_num_seqs: usize,
    swap_blocks: usize,
    preemption: Preemption,
    prefix_caching: bool,
    pinned: Vec<Beginning>,
    max_share: f64,
    window: Option<usize>,
}

/// Owners of requests, at most.
const OWNERS: usize = 4;

fn params() -> impl Strategy<Value = SamplingParams> {
    let max_tokens = prop_oneof![9 => 1..30usize, 1 => Just(0)];
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
    let logprobs = || prop::option::weighted(0.3, 0..20usize);
    (prop_oneof![greedy, sampled, beams], logprobs(), logprobs()).prop_map(|(params, logprobs, prompt_logprobs)| {
        // Without a token only an echo is left.
        SamplingParams { logprobs, prompt_logprobs, echo: params.max_tokens == 0, ..params }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let prompt = (beginning(), prop::collection::vec(1..VOCAB, 1..20));
    let cut = prop_oneof![Just(Cut::Abort), (0..6usize).prop_map(|index| Cut::Stop { index })];
    let cut = prop::option::weighted(0.3, (0..60usize, cut));
    let comes = (0..OWNERS, 0..40usize);
    (prompt, params(), comes, cut).prop_map(|((beginning, own), params, (owner, arrives), cut)| Request {
        prompt: [beginning.tokens(), own].concat(),
        params,
        owner,
        arrives,
        cut,
    })
}

fn setup() -> impl Strategy<Value = Setup> {
    let preemption = prop_oneof![Just(Preemption::Auto), Just(Preemption::Swap), Just(Preemption::Recompute)];
    let sizes = (1..9usize, 0..20usize, 0..60usize);
    let max_share = prop_oneof![Just(1.0), Just(0.5), 0.01..1.0];
    let limits = (1..40usize, 7..24usize, max_share);
    let window = prop::option::weighted(0.4, 1..40usize);
    let kept = (any::<bool>(), prop::collection::vec(beginning(), 0..3), window);
    (sizes, limits, preemption, kept).prop_map(
        |((block_size, spare_blocks, swap_blocks), (max_batch_tokens, max_num_seqs, max_share), preemption, kept)| {
            let (caching, pinned, window) = kept;
            Setup {
                block_size,
                spare_blocks,
                max_batch_tokens,
                max_num_seqs,
                swap_blocks,
                preemption,
                prefix_caching: caching,
                pinned: pinned.into_iter().filter(|p| p.len > 0).collect(),
                max_share,
                window,
            }
        },
    )
}

/// Blocks that a request cannot do without: those of one sequence, or of all its beams where they share nothing but whole
/// blocks of the prompt. A sequence that is no beam needs those only of which a window sees something.
fn least_blocks(r: &Request, block_size: usize, window: Option<usize>) -> usize {
    if let Some(window) = window.filter(|_| r.params.beam.is_none()) {
        return (r.prompt.len() + r.params.max_tokens).min(window - 1 + block_size).div_ceil(block_size);
    }
    let (shared, width) = (r.prompt.len() / block_size, r.params.beam.map_or(1, |beam| beam.width));
    shared + width * ((r.prompt.len() + r.params.max_tokens).div_ceil(block_size) - shared)
}

/// An engine whose pool is what the greatest request cannot do without, the spare blocks, and the pinned prefixes. With its
/// memory, and what changes in its cache from the first of these on.
fn engine(requests: &[Request], s: &Setup) -> (Engine, Arc<Mutex<Memory>>, Arc<Mutex<CacheChanges>>) {
    let most = requests.iter().map(|r| least_blocks(r, s.block_size, s.window)).max().unwrap();
    let pinned: usize = s.pinned.iter().map(|p| p.len.div_ceil(s.block_size)).sum();
    let config = EngineConfig {
        swap_blocks: s.swap_blocks,
        window: s.window,
        scheduler: SchedulerOptions {
            preemption: s.preemption,
            prefix_caching: s.prefix_caching,
            max_num_seqs: s.max_num_seqs,
            max_batch_tokens: s.max_batch_tokens,
            max_request_share: s.max_share,
            ..scheduler_options()
        },
        ..config(s.spare_blocks + most + pinned, s.block_size)
    };
    let oracle = Oracle::new(&config);
    let memory = oracle.memory();
    let mut engine = Engine::new(config, oracle);
    let changes = Arc::new(Mutex::new(CacheChanges::default()));
    engine.set_log(changes.clone());
    for prefix in &s.pinned {
        engine.pin_prefix(prefix.tokens()).unwrap();
    }
    (engine, memory, changes)
}

/// What attention would read through every block table is what each sequence would have in memory of its own.
fn check_memory(engine: &Engine, memory: &Mutex<Memory>) -> Result<(), TestCaseError> {
    let memory = memory.lock().unwrap();
    let scheduler = engine.scheduler();
    let waiting = scheduler.waiting().map(|g| (g, true));
    for (group, swapped) in scheduler.running().iter().map(|g| (g, false)).chain(waiting) {
        for seq in &group.running {
            let kept = contiguous(&seq.tokens[..seq.table.len()], engine.config().window);
            let own: Vec<_> = kept.into_iter().map(Some).collect();
            let held = memory.read(&seq.table, swapped);
            prop_assert_eq!(&held[..], &own[own.len() - held.len()..], "request {}", group.id);
            prop_assert!(seq.table.has_window_of(seq.table.len()));
        }
    }
    Ok(())
}

/// The result of a request.
type Answer = (Vec<Output>, Option<PromptLogprobs>);

fn answer(done: Finished) -> Answer {
    (done.outputs, done.prompt_logprobs)
}

/// The result of a request that runs alone.
fn alone(r: &Request) -> Answer {
    let config = config(100, 16);
    let oracle = Oracle::new(&config);
    let mut engine = Engine::new(config, oracle);
    engine.add(r.prompt.clone(), r.params.clone()).unwrap();
    loop {
        if let Some(done) = engine.step().unwrap().finished.pop() {
            return answer(done);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_gives_each_request_what_it_gets_alone(
        requests in prop::collection::vec(request(), 1..12),
        setup in setup(),
    ) {
        let widest = requests.iter().map(|r| r.params.width()).max().unwrap();
        let (mut engine, memory, changes) = engine(&requests, &setup);
        let mut follower = Follower::default();
        let pinned = engine.scheduler().usage().used_blocks;
        let owners: Vec<OwnerId> = (0..OWNERS).map(|_| engine.new_owner()).collect();
        let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
        let mut outputs: BTreeMap<usize, Answer> = BTreeMap::new();
        let mut cut = BTreeSet::new();
        for step in 0.. {
            for (i, r) in requests.iter().enumerate() {
                if r.arrives == step {
                    let id = engine.add_for(owners[r.owner], r.prompt.clone(), r.params.clone());
                    ids.insert(id.unwrap(), i);
                }
            }
            for (&id, &i) in &ids {
                if let Some((_, how)) = requests[i].cut.filter(|(at, _)| *at == step && !outputs.contains_key(&i)) {
                    match how {
                        Cut::Abort => engine.abort(id),
                        Cut::Stop { index } => engine.stop_output(id, index),
                    }
                    cut.insert(i);
                }
            }
            let seqs = |e: &Engine| e.scheduler().running().iter().map(|g| g.running.len()).sum::<usize>();
            let (decoding, computed) = (seqs(&engine), engine.stats().computed_tokens);
            for done in engine.step().unwrap().finished {
                outputs.insert(ids[&done.id], answer(done));
            }
            // A group that comes back from the swap space to an empty engine decodes on, however wide it is.
            let most = decoding.max(setup.max_batch_tokens).max(widest);
            prop_assert!(engine.stats().computed_tokens - computed <= most);
            prop_assert!(seqs(&engine) <= setup.max_num_seqs);
            prop_assert_eq!(engine.scheduler().check_integrity(), Ok(()));
            check_memory(&engine, &memory)?;
            follower.follow(changes.lock().unwrap().take());
            prop_assert_eq!(follower.check(&engine), Ok(()));
            if step > 60 && !engine.has_work() {
                break;
            }
            prop_assert!(step < 20_000, "no progress");
        }
        prop_assert_eq!(outputs.len(), requests.len(), "a request was lost");
        prop_assert_eq!(engine.scheduler().usage().used_blocks, pinned, "all others are free or cached");
        prop_assert_eq!(engine.scheduler().swap_usage().used_blocks, 0);
        prop_assert_eq!(engine.stats().exhausted, 0);
        for (i, got) in outputs.into_iter().filter(|(i, _)| !cut.contains(i)) {
            prop_assert_eq!(got, alone(&requests[i]));
        }
    }
}
