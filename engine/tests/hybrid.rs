//! Models that mix windows with full attention: the memory of each group of layers, prefix hits, and the failures of
//! other engines, by the number of their issues.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::DType;
use engine::SamplingParams;
use engine::Stats;
use engine::tools::config::{LayerKv, ModelConfig};
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::{BlockPool, BlockTable, CacheGroup, KvDtype, KvLayout, compact};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::Output;
use serde_json::json;

use oracle::{VOCAB, config, engine, finish, greedy, scheduler_options};

const BLOCK: usize = 4;

/// Five window layers for each full one, with blocks of odd ratios.
fn groups() -> Vec<CacheGroup> {
    vec![
        CacheGroup { blocks_per_page: 2, id_step: 5, ..CacheGroup::only(Some(10)) },
        CacheGroup { blocks_per_page: 7, ..CacheGroup::only(None) },
    ]
}

fn hybrid(num_pages: usize) -> EngineConfig {
    EngineConfig { groups: groups(), ..config(num_pages, BLOCK) }
}

/// A text whose first token depends on `start`.
fn text(start: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (start + i * i + i / 7) % (VOCAB - 1)).collect()
}

/// Runs one request alone. Returns its output, and the counts of computed, found and restored tokens.
fn ask(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> (Output, [usize; 3]) {
    let counts = |stats: Stats| [stats.computed_tokens, stats.hit_tokens, stats.swap_hit_tokens];
    let before = counts(engine.stats());
    engine.add(prompt.to_vec(), greedy(max_tokens)).unwrap();
    let output = finish(engine).remove(0).outputs.remove(0);
    let after = counts(engine.stats());
    (output, std::array::from_fn(|i| after[i] - before[i]))
}

/// The output of the same request in an empty engine without a prefix cache.
fn alone(prompt: &[u32], max_tokens: usize) -> Output {
    let scheduler = SchedulerOptions { prefix_caching: false, ..scheduler_options() };
    ask(&mut engine(EngineConfig { scheduler, ..hybrid(500) }), prompt, max_tokens).0
}

/// The layers of a model, with `(layers, heads, head size, window)` for each kind.
fn layout(kinds: &[(usize, usize, usize, Option<usize>)]) -> KvLayout {
    let kinds = kinds.iter().flat_map(|&(layers, heads, head_dim, window)| {
        std::iter::repeat_n(LayerKv { heads, head_dim, window, source: 0, latent: None }, layers)
    });
    let layers: Vec<LayerKv> = kinds.enumerate().map(|(source, layer)| LayerKv { source, ..layer }).collect();
    KvLayout::new(&layers, 16, DType::F16.into())
}

/// The bytes that a sequence of `tokens` tokens has in use, computed in chunks.
fn allocated(layout: &KvLayout, tokens: usize) -> usize {
    let groups = layout.cache_groups();
    let pool = BlockPool::with_groups(40_000, layout.block_size, &groups);
    let mut table = BlockTable::new(&pool);
    while table.len() < tokens {
        table.reserve(2048.min(tokens - table.len()), &mut Vec::new()).unwrap();
        table.slide();
        assert!(table.len() < tokens || pool.check_integrity([&table]) == Ok(()));
    }
    let bytes = |group: usize| pool.group_usage(group).used_blocks * layout.group_block_bytes(group);
    (0..groups.len()).map(bytes).sum()
}

#[test]
fn bytes_equal_an_independent_calculation() {
    let tokens = 262_144;
    // Layers, heads, head size and window of the windowed kind, and of the kind that sees all positions.
    for (name, window, full) in [
        ("Gemma 3 27B", (52, 16, 128, 1024), (10, 16, 128)),
        ("Gemma 4 31B", (50, 16, 256, 1024), (10, 4, 512)),
        ("Gemma 4 26B-A4B", (25, 8, 256, 1024), (5, 2, 512)),
        ("gpt-oss 20b", (12, 8, 64, 128), (12, 8, 64)),
        ("gpt-oss 120b", (18, 8, 64, 128), (18, 8, 64)),
    ] {
        let (layers, heads, head_dim, size) = window;
        let layout = layout(&[(layers, heads, head_dim, Some(size)), (full.0, full.1, full.2, None)]);
        // Keys and values of two bytes. The next token sees `size - 1` earlier ones, which begin at a block's first token.
        let per_token = |layers: usize, heads: usize, head_dim: usize| 2 * 2 * layers * heads * head_dim;
        let kept = (size - 1_usize).next_multiple_of(16) * per_token(layers, heads, head_dim);
        let all = tokens * per_token(full.0, full.1, full.2);
        assert_eq!(allocated(&layout, tokens), kept + all, "{name}");
        if name == "Gemma 4 31B" {
            let gib = |bytes: usize| format!("{:.1}", bytes as f64 / (1u64 << 30) as f64);
            assert_eq!(gib(kept + all), "20.8");
            assert_eq!(gib(all + tokens * per_token(layers, heads, head_dim)), "220.0", "if all is kept");
        }
    }
}

/// One vector of 512 elements and a rotated key of 64 are cached per token and layer.
#[test]
fn bytes_of_latent_vectors_equal_an_independent_calculation() {
    let tokens = 131_072;
    let lite = json!({
        "architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 27, "hidden_size": 2048,
        "num_attention_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    });
    let third = json!({"architectures": ["DeepseekV3ForCausalLM"]});
    for (name, config, per_token) in [("DeepSeek-V2-Lite", lite, 27 * 576 * 2), ("DeepSeek-V3", third, 61 * 576 * 2)] {
        let layers = ModelConfig::from_json(config.to_string().as_bytes()).unwrap().kv_layers();
        let layout = |dtype| KvLayout::new(&layers, 16, dtype);
        let half = layout(DType::F16.into());
        assert_eq!(allocated(&half, tokens), tokens * per_token, "{name}");
        // A byte per element, and a scale of two bytes for each vector.
        assert_eq!(allocated(&layout(KvDtype::Fp8), tokens), tokens * (per_token / 2 + 2 * layers.len()), "{name}");
        let kept_twice = layers.iter().map(|layer| LayerKv { latent: None, ..*layer }).collect::<Vec<_>>();
        assert_eq!(KvLayout::new(&kept_twice, 16, DType::F16.into()).block_bytes(), 2 * half.block_bytes(), "{name}");
        let text = half.clone().of_workers(2).groups[0].to_string();
        assert_eq!(text, format!("{} layers, 2 latent vectors of 576, all tokens", layers.len()));
    }
}

#[test]
fn vllm_51198_and_42948_hybrid_models_have_hits() {
    let mut engine = engine(hybrid(40));
    let prompt = text(0, 41);
    let (first, _) = ask(&mut engine, &prompt, 5);
    let (second, [computed, hits, _]) = ask(&mut engine, &prompt, 5);
    assert_eq!((second == first, hits, computed), (true, 40, 1 + 4));
}

#[test]
fn vllm_40696_and_45238_short_prompts_have_hits() {
    let mut engine = engine(hybrid(40));
    // No group's block is inflated to the size of another's, so one block is enough.
    let prompt = text(0, BLOCK + 1);
    ask(&mut engine, &prompt, 1);
    assert_eq!(ask(&mut engine, &prompt, 1).1, [1, BLOCK, 0]);
}

#[test]
fn vllm_48435_hits_do_not_collapse_while_memory_is_free() {
    // Twelve conversations take about a quarter of the pages, most of which they share.
    let mut engine = engine(EngineConfig { swap_blocks: 0, ..hybrid(250) });
    let texts: Vec<Vec<u32>> =
        (0..12).map(|start| [vec![1 + start % 11, 1 + start / 11], text(start, 30)].concat()).collect();
    for text in &texts {
        engine.add(text.clone(), greedy(9)).unwrap();
    }
    let mut answers = finish(&mut engine);
    assert!(engine.stats().peak.used_blocks * 4 <= engine.stats().peak.num_blocks);
    let before = engine.stats().hit_tokens;
    for (text, answer) in texts.iter().zip(&mut answers) {
        let next = [text.clone(), answer.outputs.remove(0).tokens, vec![3, 4]].concat();
        let (output, [_, hits, _]) = ask(&mut engine, &next, 3);
        assert_eq!((output, hits), (alone(&next, 3), 40));
    }
    assert_eq!(engine.stats().hit_tokens - before, 12 * 40);
}

#[test]
fn vllm_53912_drafts_after_a_hit_do_not_change_the_output() {
    for draft_tokens in [1, 3, 7] {
        let scheduler = SchedulerOptions { draft_tokens, ..scheduler_options() };
        let mut engine = engine(EngineConfig { scheduler, ..hybrid(30) });
        // A text that repeats itself is drafted often.
        let prompt: Vec<u32> = (0..60).map(|i| 1 + i % 5).collect();
        for _ in 0..3 {
            assert_eq!(ask(&mut engine, &prompt, 40).0, alone(&prompt, 40), "{draft_tokens} drafted tokens");
        }
        assert!(engine.stats().drafted_tokens > 0 && engine.stats().hit_tokens > 0);
    }
}

#[test]
fn vllm_55766_and_51756_each_group_has_its_own_window() {
    let group = |window, blocks_per_page| CacheGroup { blocks_per_page, ..CacheGroup::only(window) };
    let groups = vec![group(Some(3), 2), group(Some(17), 3), group(None, 1)];
    let config = |pages| EngineConfig { groups: groups.clone(), ..config(pages, BLOCK) };
    let mut tight = engine(config(40));
    let prompt = text(3, 50);
    let first = ask(&mut tight, &prompt, 20).0;
    for len in [50, 33, 21, 9] {
        let scheduler = SchedulerOptions { prefix_caching: false, ..scheduler_options() };
        let want = ask(&mut engine(EngineConfig { scheduler, ..config(500) }), &prompt[..len], 20).0;
        assert_eq!(ask(&mut tight, &prompt[..len], 20).0, want);
        assert!(len < 50 || first == want);
    }
}

#[test]
fn sglang_39342_scheduling_options_do_not_change_outputs() {
    let prompts: Vec<Vec<u32>> = (0..5).map(|start| text(start, 30 + 3 * start as usize)).collect();
    let want: Vec<Output> = prompts.iter().map(|prompt| alone(prompt, 25)).collect();
    for (max_batch_tokens, pages) in [(1, 12), (5, 20), (7, 30), (64, 60)] {
        for preemption in [Preemption::Swap, Preemption::Recompute] {
            let scheduler = SchedulerOptions { max_batch_tokens, preemption, ..scheduler_options() };
            let mut engine = engine(EngineConfig { scheduler, ..hybrid(pages) });
            prompts.iter().for_each(|prompt| assert!(engine.add(prompt.clone(), greedy(25)).is_ok()));
            let got: Vec<Output> = finish(&mut engine).into_iter().map(|mut done| done.outputs.remove(0)).collect();
            assert_eq!(got, want, "{max_batch_tokens} tokens per step, {pages} pages, {preemption:?}");
        }
    }
}

#[test]
fn lmcache_4247_a_hit_in_the_swap_space_restores_all_groups_or_none() {
    let mut engine = engine(EngineConfig { swap_blocks: 60, ..hybrid(12) });
    let prompt = text(0, 45);
    ask(&mut engine, &prompt, 1);
    (1..6).for_each(|other| drop(ask(&mut engine, &text(other, 50), 4)));
    let (output, [computed, hits, swapped]) = ask(&mut engine, &prompt, 8);
    assert_eq!(output, alone(&prompt, 8));
    assert_eq!((computed, hits, swapped), (1 + 7, 44, 44), "only the last token is computed");
}

#[test]
fn vllm_39734_45414_and_35541_tight_memory_never_deadlocks() {
    for pages in [7, 8, 9, 11] {
        for preemption in [Preemption::Swap, Preemption::Recompute] {
            let scheduler = SchedulerOptions { max_batch_tokens: 9, preemption, ..scheduler_options() };
            let mut engine = engine(EngineConfig { scheduler, ..hybrid(pages) });
            let sampled = SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(1), ..greedy(20) };
            for start in 0..6 {
                let params = if start % 2 == 0 { greedy(30) } else { sampled.clone() };
                engine.add(text(start, 20 + 5 * start as usize), params).unwrap();
            }
            let done = finish(&mut engine);
            assert_eq!((done.len(), engine.stats().exhausted), (6, 0), "{pages} pages, {preemption:?}");
        }
    }
}

#[test]
fn llama_cpp_21831_and_mlx_lm_980_a_turn_computes_only_its_new_tokens() {
    let mut engine = engine(hybrid(60));
    let mut prompt = text(0, 40);
    for turn in 0..6 {
        let (output, [computed, ..]) = ask(&mut engine, &prompt, 11);
        assert_eq!(output, alone(&prompt, 11), "turn {turn}");
        // Six new tokens, ten computed tokens of the answer, and tokens of a block that was not full.
        assert!(turn == 0 || computed <= 6 + 10 + BLOCK, "turn {turn} computed {computed} tokens");
        prompt.extend(output.tokens);
        prompt.extend(text(turn, 6));
    }
}

#[test]
fn a_prompt_that_branches_off_behind_the_window_resumes_at_a_complete_window() {
    let mut engine = engine(EngineConfig { swap_blocks: 0, ..hybrid(200) });
    let long = text(0, 80);
    ask(&mut engine, &long, 1);
    let branch = [&long[..44], &text(5, 20)].concat();
    let (output, [_, hits, _]) = ask(&mut engine, &branch, 5);
    assert_eq!((output, hits), (alone(&branch, 5), 44), "blocks that were given back stay findable");
}

#[test]
fn compaction_leaves_at_most_one_partly_used_page_in_each_group() {
    let pool = BlockPool::with_groups(40, BLOCK, &groups());
    let mut tables: Vec<BlockTable> = (0..12).map(|_| BlockTable::new(&pool)).collect();
    for _ in 0..4 {
        tables.iter_mut().for_each(|table| table.reserve(BLOCK, &mut Vec::new()).unwrap());
    }
    // Every third sequence stays, so its blocks are scattered.
    let mut at = 0;
    tables.retain(|_| {
        at += 1;
        at % 3 == 0
    });
    let before = pool.num_free();
    let mut copies = Vec::new();
    assert!(compact(&pool, &mut tables, &mut copies));
    assert_eq!(pool.check_integrity(&tables), Ok(()));
    let used = |group: usize| pool.group_usage(group).used_blocks;
    assert_eq!((used(0), used(1)), (4 * 4, 4 * 4));
    let pages = used(0).div_ceil(2) + used(1).div_ceil(7);
    assert_eq!(pool.num_free(), 40 - pages);
    assert!(before < pool.num_free() && copies.len() < used(0) + used(1), "{} blocks moved", copies.len());
    assert!(!compact(&pool, &mut tables, &mut copies), "a second time changes nothing");
}

#[test]
fn a_repeated_prompt_resumes_at_its_end_after_a_long_answer() {
    // The answer is longer than the window, so the request gives back the blocks at the end of its prompt.
    let mut engine = engine(EngineConfig { swap_blocks: 60, ..hybrid(12) });
    let prompt = text(0, 45);
    ask(&mut engine, &prompt, 30);
    (1..6).for_each(|other| drop(ask(&mut engine, &text(other, 50), 4)));
    let (output, [computed, hits, swapped]) = ask(&mut engine, &prompt, 8);
    assert_eq!(output, alone(&prompt, 8));
    assert_eq!((computed, hits, swapped), (1 + 7, 44, 44), "only the last token is computed");
}

#[test]
fn the_third_prompt_of_a_kind_resumes_where_it_differs() {
    // Room for one request and little more. What a window leaves behind is evicted at once.
    let mut engine = engine(EngineConfig { swap_blocks: 0, ..hybrid(16) });
    let common = text(0, 40);
    let hits = (1..5).map(|other| {
        let prompt = [&common[..], &text(other, 21)].concat();
        let (output, [_, hits, _]) = ask(&mut engine, &prompt, 4);
        assert_eq!(output, alone(&prompt, 4));
        hits
    });
    let hits: Vec<usize> = hits.collect();
    assert_eq!(hits[2..], [40, 40], "{hits:?}");
}
