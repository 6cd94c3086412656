//! Random schedules: requests of all kinds that arrive and are stopped at random steps, and engines of all sizes.

#![allow(dead_code)] // not every test uses all of it

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use engine::ModelFiles;
use engine::Pooling;
use engine::tools::adapter::AdapterHandle;
use engine::tools::constraint::{Constraint, Grammar, GrammarCompiler};
use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::group::{OwnerId, RequestId};
use engine::tools::kv::CacheGroup;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::tools::scheduler::{Preemption, SchedulerOptions, SchedulingPolicy};
use engine::tools::sequence::{Output, PromptLogprobs};
use engine::tools::tokenizer::{Tokenizer, TokenizerFiles};
use proptest::prelude::*;
use serde_json::json;

use crate::oracle::{EOS, VOCAB, adapter, config, scheduler_options};

/// Runs as many schedules as the variable `PROPTEST_CASES` says, otherwise this many.
pub fn cases(cases: u32) -> ProptestConfig {
    let given = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { given } else { ProptestConfig { cases, ..given } }
}

/// A request, and when it arrives.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    /// The index of its owner.
    pub owner: usize,
    /// Its salt.
    pub salt: Option<Arc<str>>,
    /// Its priority, for engines that have priorities.
    pub priority: i64,
    /// The step before which it arrives.
    pub arrives: usize,
    /// The step before which it is cancelled, or one of its outputs is stopped.
    pub cut: Option<(usize, Cut)>,
}

/// How a request ends early.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Abort,
    Stop { index: usize },
}

/// A prefix that prompts and pinned prefixes may share.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    pub text: u32,
    pub len: usize,
}

impl Beginning {
    pub fn tokens(self) -> Vec<u32> {
        // The first two texts share their first 17 tokens.
        let token = |i: u32| 1 + (i * i + i / 5 + if i < 17 { self.text / 2 } else { self.text }) % (VOCAB - 1);
        (0..self.len as u32).map(token).collect()
    }
}

fn beginning() -> impl Strategy<Value = Beginning> {
    (0..3u32, 0..40usize).prop_map(|(text, len)| Beginning { text, len })
}

/// The settings of a random engine.
#[derive(Clone, Debug)]
pub struct Setup {
    pub block_size: usize,
    /// Blocks beyond those that the largest request needs.
    pub spare_blocks: usize,
    pub max_batch_tokens: usize,
    pub max_num_seqs: usize,
    pub swap_blocks: usize,
    pub preemption: Preemption,
    pub prefix_caching: bool,
    pub pinned: Vec<Beginning>,
    pub max_share: f64,
    /// The groups of layers.
    pub groups: Vec<CacheGroup>,
    pub draft_tokens: usize,
    /// Most adapters in a step.
    pub max_loras: usize,
    /// The steps after which a waiting request gains a level. `None` if priorities are ignored.
    pub priorities: Option<usize>,
}

/// Number of owners of requests.
pub const OWNERS: usize = 4;

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
    let pooled = prop_oneof![Just(Pooling::Last), Just(Pooling::Mean)].prop_map(|pooling| SamplingParams {
        max_tokens: 0,
        pooling: Some(pooling),
        ..Default::default()
    });
    let logprobs = || prop::option::weighted(0.3, 0..20usize);
    let generating = (prop_oneof![greedy, sampled, beams], logprobs(), logprobs()).prop_map(
        |(params, logprobs, prompt_logprobs)| {
            // A request without generated tokens must ask for an echo.
            SamplingParams { logprobs, prompt_logprobs, echo: params.max_tokens == 0, ..params }
        },
    );
    prop_oneof![5 => generating, 1 => pooled]
}

/// A request of any kind.
pub fn request() -> impl Strategy<Value = Request> {
    let prompt = (beginning(), prop::collection::vec(1..VOCAB, 1..20));
    let cut = prop_oneof![Just(Cut::Abort), (0..6usize).prop_map(|index| Cut::Stop { index })];
    let cut = prop::option::weighted(0.3, (0..60usize, cut));
    let salt = prop_oneof![3 => Just(None), 1 => Just(Some("a".into())), 1 => Just(Some("b".into()))];
    let comes = (0..OWNERS, 0..40usize, -2..3i64, salt);
    let turns = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    // Adapters of one to four pages.
    let adapter = prop::option::weighted(0.4, (1..5u8).prop_map(|number| adapter(number, number.into())));
    (prompt, params(), comes, cut, (turns, adapter)).prop_map(|((beginning, own), params, comes, cut, more)| {
        let (turns, adapter) = more;
        let (owner, arrives, priority, salt) = comes;
        let prompt = [beginning.tokens(), own].concat();
        let turn_ends = turns.into_iter().map(|end| end.index(prompt.len() + 1)).collect();
        Request { params: SamplingParams { turn_ends, adapter, ..params }, prompt, owner, priority, salt, arrives, cut }
    })
}

/// As [`request`], with a grammar of the oracle's language for some requests.
pub fn constrained_request() -> impl Strategy<Value = Request> {
    (request(), prop::option::weighted(0.5, 0..GRAMMARS.len())).prop_map(|(request, grammar)| {
        let grammar = grammar.filter(|_| request.params.pooling.is_none());
        let constraint = grammar.map(|at| constraints()[at].clone());
        Request { params: SamplingParams { constraint, ..request.params }, ..request }
    })
}

/// The same requests to the model alone.
pub fn without_adapters(requests: Vec<Request>) -> Vec<Request> {
    let plain = |r: Request| Request { params: SamplingParams { adapter: None, ..r.params }, ..r };
    requests.into_iter().map(plain).collect()
}

/// Grammars over the oracle's tokens. The first allows many sentences of any length. The second has short ones, which
/// end in the middle of a beam search. The third has fewer sentences than there are beams.
const GRAMMARS: [&str; 3] = ["([a-d]{2}[e-h]|[i-k]a){1,20}", "[a-k][b-d]{0,3}k|jj", "abc|abk[e-f]"];

/// The compiled grammars.
fn constraints() -> &'static [Constraint] {
    static CONSTRAINTS: OnceLock<Vec<Constraint>> = OnceLock::new();
    CONSTRAINTS.get_or_init(|| {
        let letter = |id: u32| char::from(b'a' + (id - 1) as u8).to_string();
        let letters = (0..VOCAB).map(|id| (if id == EOS { "<e>".into() } else { letter(id) }, id.into()));
        let vocab: serde_json::Map<String, serde_json::Value> = letters.collect();
        let end = json!({"id": EOS, "content": "<e>", "special": true, "single_word": false, "lstrip": false,
                         "rstrip": false, "normalized": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let json = json!({"version": "1.0", "added_tokens": [end], "pre_tokenizer": bytes, "decoder": bytes,
                          "model": {"type": "BPE", "vocab": vocab, "merges": []}})
        .to_string();
        let files = TokenizerFiles { tokenizer_json: Some(json.as_bytes()), ..TokenizerFiles::default() };
        let tokenizer = Arc::new(Tokenizer::from_files(&files, &ModelFiles::bundled().config().unwrap()).unwrap());
        let compiler = GrammarCompiler::new(tokenizer, VOCAB as usize, &[EOS]);
        GRAMMARS.map(|regex| compiler.compile(&Grammar::Regex(regex.into())).unwrap()).into()
    })
}

/// An engine of random size.
pub fn setup() -> impl Strategy<Value = Setup> {
    let preemption = prop_oneof![Just(Preemption::Auto), Just(Preemption::Swap), Just(Preemption::Recompute)];
    let sizes = (1..9usize, 0..20usize, 0..60usize);
    let max_share = prop_oneof![Just(1.0), Just(0.5), 0.01..1.0];
    let priorities = prop_oneof![Just(None), Just(Some(0)), (1..30usize).prop_map(Some)];
    let limits = (1..40usize, 7..24usize, max_share, priorities, 1..4usize);
    let drafts = prop_oneof![Just(0), 1..8usize];
    let kept = (any::<bool>(), prop::collection::vec(beginning(), 0..3), groups(), drafts);
    (sizes, limits, preemption, kept).prop_map(|((block_size, spare_blocks, swap_blocks), limits, preemption, kept)| {
        let (max_batch_tokens, max_num_seqs, max_share, priorities, max_loras) = limits;
        let (caching, pinned, groups, draft_tokens) = kept;
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
            groups,
            draft_tokens,
            max_loras,
            priorities,
        }
    })
}

/// One group of layers, or several whose blocks have odd ratios. Windows are shorter and longer than blocks. Some groups
/// keep states.
fn groups() -> impl Strategy<Value = Vec<CacheGroup>> {
    let window = || prop::option::weighted(0.4, 1..40usize);
    let one = window().prop_map(|window| vec![CacheGroup::only(window)]);
    let only = |(stride, id_step)| vec![CacheGroup::states(stride, 1, id_step)];
    let states = || (prop_oneof![Just(1), 2..5usize, Just(100)], 1..4usize);
    let group = || {
        let kv = (prop::option::weighted(0.6, 1..30usize), 1..6usize, 1..4usize).prop_map(
            |(window, blocks_per_page, id_step)| CacheGroup { blocks_per_page, id_step, ..CacheGroup::only(window) },
        );
        let state =
            (states(), 1..3usize).prop_map(|((stride, id_step), blocks)| CacheGroup::states(stride, blocks, id_step));
        prop_oneof![3 => kv, 2 => state]
    };
    prop_oneof![5 => one, 1 => states().prop_map(only), 8 => prop::collection::vec(group(), 2..4)]
}

/// The minimum number of blocks of a group that a request needs, for one sequence or for all its beams. Beams are assumed to share
/// only whole blocks of the prompt. With a window, a sequence that is no beam needs only the blocks that the window
/// covers. Beams with states are computed again without sharing, and each may read one state and write another.
fn least_blocks(r: &Request, block_size: usize, group: &CacheGroup, has_states: bool) -> usize {
    let width = r.params.beam.map_or(1, |beam| beam.width);
    if group.is_state() {
        return if r.params.beam.is_some() { 2 * width } else { 1 };
    }
    if let Some(window) = group.window.filter(|_| r.params.beam.is_none()) {
        return (r.prompt.len() + r.params.max_tokens).min(window - 1 + block_size).div_ceil(block_size);
    }
    let shared = if has_states { 0 } else { r.prompt.len() / block_size };
    shared + width * ((r.prompt.len() + r.params.max_tokens).div_ceil(block_size) - shared)
}

impl Setup {
    /// The configuration of an engine whose pool holds the largest request, the spare blocks and the pinned prefixes.
    pub fn config(&self, requests: &[Request]) -> EngineConfig {
        let pinned: usize = self.pinned.iter().map(|p| p.len.div_ceil(self.block_size)).sum();
        let pages = |r: &Request| {
            let has_states = self.groups.iter().any(CacheGroup::is_state);
            let blocks = |group: &CacheGroup| pinned + least_blocks(r, self.block_size, group, has_states);
            let adapter = r.params.adapter.as_ref().map_or(0, AdapterHandle::pages);
            adapter + self.groups.iter().map(|group| blocks(group).div_ceil(group.blocks_per_page)).sum::<usize>()
        };
        let most = requests.iter().map(pages).max().unwrap();
        EngineConfig {
            swap_blocks: self.swap_blocks,
            groups: self.groups.clone(),
            scheduler: SchedulerOptions {
                preemption: self.preemption,
                prefix_caching: self.prefix_caching,
                max_num_seqs: self.max_num_seqs,
                max_batch_tokens: self.max_batch_tokens,
                max_request_share: self.max_share,
                draft_tokens: self.draft_tokens,
                max_loras: self.max_loras,
                policy: match self.priorities {
                    None => SchedulingPolicy::Fcfs,
                    Some(_) => SchedulingPolicy::Priority,
                },
                priority_ageing: self.priorities.unwrap_or(0),
                ..scheduler_options()
            },
            ..config(self.spare_blocks + most, self.block_size)
        }
    }
}

/// The result of a request: its outputs, its prompt's logprobs and its embedding.
pub type Answer = (Vec<Output>, Option<PromptLogprobs>, Option<Vec<f32>>);

/// The result of a finished request.
pub fn answer(done: Finished) -> Answer {
    (done.outputs, done.prompt_logprobs, done.embedding)
}

/// The result of a request that runs alone.
pub fn alone(mut engine: Engine, r: &Request) -> Answer {
    engine.add(r.prompt.clone(), r.params.clone()).unwrap();
    loop {
        if let Some(done) = engine.step().unwrap().finished.pop() {
            return answer(done);
        }
    }
}

/// Adds the requests that arrive before this step.
pub fn arrive(
    engine: &mut Engine,
    step: usize,
    requests: &[Request],
    owners: &[OwnerId],
    ids: &mut BTreeMap<RequestId, usize>,
) {
    for (i, r) in requests.iter().enumerate().filter(|(_, r)| r.arrives == step) {
        let priority = match engine.config().scheduler.policy {
            SchedulingPolicy::Fcfs => 0,
            SchedulingPolicy::Priority => r.priority,
        };
        let params = SamplingParams { priority, cache_salt: r.salt.clone(), ..r.params.clone() };
        let id = engine.add_for(owners[r.owner], r.prompt.clone(), params);
        ids.insert(id.unwrap(), i);
    }
}

/// Ends the unanswered requests that are to be cut in this step, and adds them to `cut`.
pub fn cut_short(
    engine: &mut Engine,
    step: usize,
    requests: &[Request],
    ids: &BTreeMap<RequestId, usize>,
    answered: &BTreeMap<usize, Answer>,
    cut: &mut BTreeSet<usize>,
) {
    for (&id, &i) in ids {
        let due = |&(at, _): &(usize, Cut)| at == step && !answered.contains_key(&i);
        if let Some((_, how)) = requests[i].cut.filter(due) {
            match how {
                Cut::Abort => engine.abort(id),
                Cut::Stop { index } => engine.stop_output(id, index),
            }
            cut.insert(i);
        }
    }
}
