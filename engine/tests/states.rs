//! Models with recurrent layers: which states are kept, what they take, and where prompts resume. `scheduling.rs` and
//! `workers.rs` run random schedules over such models.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::DType;
use engine::tools::config::{LayerKv, LayerMemory};
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::{BlockPool, BlockTable, CacheGroup, KvDtype, KvLayout};
use engine::tools::sampling::SamplingParams;
use oracle::{EOS, VOCAB, config, engine, finish, greedy};

const BLOCK: usize = 4;
/// The number of blocks from one kept state of a prompt to the next.
const STRIDE: usize = 10;

/// A state takes as much memory as six blocks of keys and values.
fn recurrent(num_pages: usize) -> EngineConfig {
    let kv = CacheGroup { blocks_per_page: 6, ..CacheGroup::only(None) };
    EngineConfig { groups: vec![CacheGroup::states(STRIDE, 1, 3), kv], ..config(num_pages, BLOCK) }
}

fn text(start: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (start + i * i + i / 7) % (VOCAB - 1)).collect()
}

/// Runs one request alone. Returns its output and the number of prompt tokens that were found.
fn ask(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, usize) {
    engine.add(prompt.to_vec(), greedy(max_tokens)).unwrap();
    let done = finish(engine).remove(0);
    (done.outputs[0].tokens.clone(), done.cached_tokens)
}

#[test]
fn the_next_turn_resumes_in_the_last_block_of_the_answer() {
    let mut engine = engine(recurrent(30));
    let (mut prompt, mut len) = (text(1, 50), 0);
    for turn in 0..5 {
        let (answer, hit) = ask(&mut engine, &prompt, 23);
        assert_eq!(hit, len, "turn {turn}");
        prompt.extend(&answer);
        // The last token of the answer is not computed.
        len = (prompt.len() - 1) / BLOCK * BLOCK;
        prompt.extend(text(turn, 9));
    }
    // A repeated prompt resumes at its own end, and one that parts from it at the last multiple of the stride.
    assert_eq!(ask(&mut engine, &text(1, 50), 1).1, 48);
    assert_eq!(ask(&mut engine, &[&text(1, 47)[..], &[3, 3, 3, 3]].concat(), 1).1, STRIDE * BLOCK);
}

#[test]
fn a_state_is_kept_where_a_second_prompt_parts_from_the_first() {
    let mut engine = engine(recurrent(30));
    let prompt = |own: u32| [&text(1, 30)[..], &[own; 6]].concat();
    let hits = [1, 2, 3].map(|own| ask(&mut engine, &prompt(own), 1).1);
    assert_eq!(hits, [0, 0, 28], "the second one shows where they part");
}

#[test]
fn states_are_kept_at_ends_of_messages() {
    let mut engine = engine(recurrent(30));
    let system = text(5, 18);
    // The first end is the end-of-sequence token's. The request names the second.
    let prompt = [&system[..], &[EOS], &text(7, 9), &text(8, 8)].concat();
    let params = SamplingParams { turn_ends: vec![28], ..greedy(1) };
    engine.add(prompt.clone(), params).unwrap();
    finish(&mut engine);
    let hit = |engine: &mut Engine, same: usize| ask(engine, &[&prompt[..same], &text(2, 9)].concat(), 1).1;
    assert_eq!(hit(&mut engine, 29), 28);
    assert_eq!(hit(&mut engine, 20), 16);
}

#[test]
fn small_states_are_kept_in_every_block() {
    let groups = vec![CacheGroup::states(1, 5, 2), CacheGroup { blocks_per_page: 3, ..CacheGroup::only(None) }];
    let mut engine = engine(EngineConfig { groups, ..config(60, BLOCK) });
    let prompt = text(4, 60);
    ask(&mut engine, &prompt, 1);
    for len in [57, 33, 18] {
        assert_eq!(ask(&mut engine, &[&prompt[..len], &[1, 1, 1, 1, 1]].concat(), 1).1, len / BLOCK * BLOCK);
    }
}

#[test]
fn a_sequence_needs_one_state_where_memory_is_short() {
    // One page for the state, and three for 72 tokens.
    let mut tight = engine(recurrent(4));
    let prompt = text(3, 40);
    let got = ask(&mut tight, &prompt, 30);
    assert_eq!(got, ask(&mut engine(recurrent(200)), &prompt, 30));
    assert_eq!((tight.stats().exhausted, tight.stats().preemptions), (0, 0));
    // Several outputs are divided and wait for each other.
    let params = SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(1), ..greedy(20) };
    let outputs = |mut engine: Engine| {
        engine.add(prompt.clone(), params.clone()).unwrap();
        let done = finish(&mut engine).remove(0);
        (done.outputs, engine.stats().exhausted)
    };
    assert_eq!(outputs(engine(recurrent(4))), outputs(engine(recurrent(200))));
}

#[test]
fn evicted_states_come_back_from_the_swap_space() {
    let mut engine = engine(EngineConfig { swap_blocks: 100, ..recurrent(8) });
    let prompts: Vec<Vec<u32>> = (0..6).map(|start| text(start, 60)).collect();
    let answers: Vec<_> = prompts.iter().map(|prompt| ask(&mut engine, prompt, 6).0).collect();
    let roomy = || oracle::engine(recurrent(200));
    for (prompt, answer) in prompts.iter().zip(answers) {
        let next = [&prompt[..], &answer, &[3; 5]].concat();
        assert_eq!(ask(&mut engine, &next, 6), (ask(&mut roomy(), &next, 6).0, 64));
    }
    assert!(engine.stats().swap_hit_tokens > 0);
}

/// The layers of Qwen3.5 35B-A3B: three of four are delta nets.
fn qwen3_5_35b(dtype: KvDtype) -> KvLayout {
    let (key_heads, value_heads, head_dim, kernel) = (16, 32, 128, 4);
    let channels = (2 * key_heads + value_heads) * head_dim;
    assert_eq!(channels, 8192);
    let state = LayerMemory::State { elements: (kernel - 1) * channels + value_heads * head_dim * head_dim };
    let layer = |at: usize| match at % 4 {
        3 => LayerMemory::Kv(LayerKv { heads: 2, head_dim: 256, window: None, source: at, latent: None }),
        _ => state,
    };
    KvLayout::new(&(0..40).map(layer).collect::<Vec<_>>(), 16, dtype)
}

#[test]
fn the_state_of_qwen3_5_35b_takes_as_much_as_3_200_tokens() {
    let layout = qwen3_5_35b(DType::F16.into());
    let groups: Vec<String> = layout.groups.iter().map(ToString::to_string).collect();
    assert_eq!(groups, ["30 layers, a state of 62.8 MiB", "10 layers, 2 heads of 256, all tokens"]);
    // 30 layers of 32 matrices of 128 x 128 and of three columns of 8,192 channels, in f32.
    let state = 30 * 4 * (32 * 128 * 128 + 3 * 8192);
    let block = 10 * 2 * 2 * 256 * 16 * 2;
    assert_eq!([0, 1].map(|group| layout.group_block_bytes(group)), [state, block]);
    assert_eq!((layout.page_bytes(), layout.groups[1].blocks_per_page), (state, 201));
    assert_eq!(layout.cache_groups()[0].state_stride, Some(201));
    // A sequence takes one state whatever its length, and keys and values for each token.
    for tokens in [1, 5_000, 100_000] {
        assert_eq!(
            (layout.sequence_bytes(0, tokens), layout.sequence_bytes(1, tokens)),
            (state, tokens.div_ceil(16) * block)
        );
        assert_eq!(allocated(&layout, tokens), state + tokens.div_ceil(16) * block);
    }
    // 40 GiB hold the states and the keys and values of 286 sequences of 4,096 tokens.
    let pages = (40 << 30) / state;
    assert_eq!((pages, layout.sequences_in(pages, 4_096)), (652, 286));
}

/// Layers with `state` elements each, and layers with keys and values: `(layers, heads, head size)`.
fn layout(states: (usize, usize), kv: (usize, usize, usize), dtype: KvDtype) -> KvLayout {
    let state = std::iter::repeat_n(LayerMemory::State { elements: states.1 }, states.0);
    let kv =
        (0..kv.0).map(|at| LayerKv { heads: kv.1, head_dim: kv.2, window: None, source: states.0 + at, latent: None });
    KvLayout::new(&state.chain(kv.map(LayerMemory::Kv)).collect::<Vec<_>>(), 16, dtype)
}

#[test]
fn pages_are_hardly_larger_than_states() {
    let mamba = |heads: usize| heads * 64 * 128 + 3 * (heads * 64 + 2 * 128);
    for (model, states, kv) in [
        ("Qwen3.5 35B-A3B", (30, 32 * 128 * 128 + 3 * 8192), (10, 2, 256)),
        ("Qwen3.5 0.8B", (18, 16 * 128 * 128 + 3 * 6144), (6, 2, 256)),
        ("Granite 4 H Small", (36, mamba(128)), (4, 8, 128)),
        ("Granite 4 H Tiny", (36, mamba(48)), (4, 4, 128)),
        ("LFM2 1.2B", (10, 2 * 2048), (6, 8, 64)),
    ] {
        for dtype in [DType::F32.into(), DType::F16.into(), KvDtype::Int8] {
            let layout = layout(states, kv, dtype);
            let state = layout.groups[0].state_bytes().unwrap();
            let (page, per_page) = (layout.page_bytes(), layout.groups[0].blocks_per_page);
            assert!(!layout.is_wasteful() && page <= (100 << 20).max(state + state / 32), "{model} in {dtype}: {page}");
            assert!(page - per_page * state <= page / 32, "{model} in {dtype}: {per_page} states per page of {page}");
            // Small states are kept in every block.
            assert_eq!(
                layout.cache_groups()[0].state_stride == Some(1),
                model.starts_with("LFM2"),
                "{model} in {dtype}"
            );
        }
    }
    let one = qwen3_5_35b(DType::F16.into());
    assert_eq!(one.clone().of_workers(2).groups[0].state_bytes(), one.groups[0].state_bytes().map(|bytes| 2 * bytes));
}

/// The bytes that a sequence of `tokens` tokens has in use.
fn allocated(layout: &KvLayout, tokens: usize) -> usize {
    let groups = layout.cache_groups();
    let pool = BlockPool::with_groups(2_000, layout.block_size, &groups);
    let mut table = BlockTable::new(&pool);
    while table.len() < tokens {
        table.reserve(2048.min(tokens - table.len()), &mut Vec::new()).unwrap();
        table.slide();
    }
    let bytes = |group: usize| pool.group_usage(group).used_blocks * layout.group_block_bytes(group);
    (0..groups.len()).map(bytes).sum()
}
