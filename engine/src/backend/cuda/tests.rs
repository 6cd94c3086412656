//! Tests of the backend on the emulator.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod attention;
mod drafts;
mod experts;
mod groups;
mod operations;
mod packing;
mod parallel;

use std::path::Path;

use emulator::driver::{collect_reports, take_reports};
use launch::Driver;

use super::*;
use crate::backend::Backend;
use crate::batch::{Batch, Span};
use crate::kv::{BlockCopy, BlockMoves, KvDtype, KvLayout};
use crate::load::ModelFiles;
use crate::memory_plan::{Rehearsal, plan_memory, rehearse};
use crate::model::{self, Model};
use crate::options::{AttentionKernels, Options};
use crate::parallel::Shard;
use crate::runner::{ModelRunner, Runner};
use crate::sampling::{SampleRow, Sampled, SamplingParams};
use crate::scheduler::SchedulerOptions;

/// A golden model on the emulator, ready to run steps.
struct Loaded {
    backend: CudaBackend,
    model: Box<dyn Model<CudaBackend>>,
    layout: KvLayout,
    cache: CudaKvCache,
}

fn load(name: &str, records: bool, swap_blocks: usize) -> Loaded {
    load_with(name, &Options { cuda_graphs: records, ..Options::default() }, swap_blocks)
}

/// Pages of a cache with several groups.
const PAGES: usize = 64;

fn load_with(name: &str, options: &Options, swap_blocks: usize) -> Loaded {
    load_config(name, &open(name).1, options, swap_blocks)
}

/// Loads a model with another configuration for the same weights.
fn load_config(name: &str, config: &ModelConfig, options: &Options, swap_blocks: usize) -> Loaded {
    let driver = Driver::emulator().unwrap();
    let backend = CudaBackend::new(driver, 0, config, Shard::WHOLE, options, (DType::F16, kv(options)), false).unwrap();
    ready((name, config), backend, swap_blocks, kv(options))
}

/// The type of keys and values with f16 activations.
fn kv(options: &Options) -> KvDtype {
    options.kv_dtype.unwrap_or(DType::F16.into())
}

fn open(name: &str) -> (ModelFiles, ModelConfig) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden").join(name);
    let files = ModelFiles::directory(path).unwrap();
    let config = files.config().unwrap();
    (files, config)
}

/// Loads a model's part on a backend and creates its cache.
fn ready((name, config): (&str, &ModelConfig), backend: CudaBackend, swap_blocks: usize, kv_dtype: KvDtype) -> Loaded {
    let files = open(name).0;
    let mut weights = files.weights(Some(DType::F16)).unwrap();
    weights.strip_prefix(config.family.weight_prefixes());
    let model = model::load(&backend, config, &mut weights, config.max_positions).unwrap();
    let layout = KvLayout::new(&backend.shard().memory_layers(config), 16, kv_dtype);
    let options = SchedulerOptions { max_batch_tokens: 64, max_num_seqs: 16, ..SchedulerOptions::default() };
    plan_memory(&backend, &*model, &layout, options, 0.9).unwrap();
    let pages = if layout.groups.len() == 1 { 16 } else { PAGES };
    let cache = backend.kv_cache(layout.clone(), pages, swap_blocks).unwrap();
    Loaded { backend, model, layout, cache }
}

/// Returns a step of sequences with separate blocks. Each pair is the number of new tokens and of all tokens.
fn batch(sequences: &[(usize, usize)]) -> Batch {
    let mut batch = Batch::new(1);
    for (i, &(len, context)) in sequences.iter().enumerate() {
        let first = 2 * i as u32;
        batch.spans.push(Span { start: batch.tokens.len(), len, context, table: batch.table_len() });
        batch.groups[0].blocks.extend((0..context.div_ceil(16) as u32).map(|b| first + b));
        for position in (context - len) as u32..context as u32 {
            batch.tokens.push(5 + position % 7);
            batch.positions.push(position);
            batch.groups[0].slots.push(16 * first + position);
        }
        batch.logit_rows.push(batch.tokens.len() as u32 - 1);
    }
    batch
}

/// Like [`batch`], but every token is followed by a sample, as in drafts.
fn sampled_everywhere(sequences: &[(usize, usize)]) -> Batch {
    let batch = batch(sequences);
    Batch { logit_rows: (0..batch.tokens.len() as u32).collect(), ..batch }
}

impl Loaded {
    fn step(&mut self, batch: Batch) -> Vec<Sampled> {
        let Loaded { backend, model, cache, .. } = self;
        let params = SamplingParams::default();
        let rows = vec![SampleRow { top: 2, ..SampleRow::new(&params, 0) }; batch.logit_rows.len()];
        let inputs = backend.upload(batch, &rows);
        backend.move_blocks(cache, &inputs);
        let compute = || {
            let hidden = model.forward(backend, cache, &inputs);
            Some(backend.gather_logits(model.logits(backend, backend.logit_rows(&hidden, &inputs))))
        };
        let logits = backend.compute(&inputs, compute).unwrap();
        backend.sample(&logits, &inputs, &rows).unwrap()
    }

    fn free(&self) -> usize {
        self.backend.queue.device().unwrap().context.memory().unwrap().0
    }
}

#[test]
fn a_rehearsal_notes_the_launches_of_the_step() {
    for (name, attention, hopper_from, hopper_decode_from, kv_dtype) in [
        ("opt-350m-like", AttentionKernels::Quire, None, None, None),
        ("opt-350m-like", AttentionKernels::Quire, None, None, Some(KvDtype::Int8)),
        ("qwen3", AttentionKernels::Quire, None, None, None),
        ("qwen3", AttentionKernels::Quire, None, None, Some(KvDtype::Fp8)),
        ("llama3", AttentionKernels::Quire, Some(1), None, None),
        ("llama3", AttentionKernels::Quire, None, Some(1), None),
        ("llama3", AttentionKernels::V1, None, None, None),
        ("llama3", AttentionKernels::V2, None, None, None),
    ] {
        let options =
            Options { cuda_graphs: false, attention, hopper_from, hopper_decode_from, kv_dtype, ..Options::default() };
        let mut loaded = load_with(name, &options, 0);
        loaded.step(batch(&[(3, 3), (9, 9)]));
        let mut products = Vec::new();
        for (drafted, prompt) in [(0, 20), (5, 0)] {
            let step = Rehearsal { decodes: 2, context: 10, drafted, prompt, logits: 3 };
            let rehearsed = rehearse(&loaded.backend, &*loaded.model, &loaded.layout, step).unwrap();
            collect_reports(true).unwrap();
            loaded.step(batch(&[(1, 10), (1, 10), (drafted + prompt, drafted + prompt)]));
            let launched = take_reports().unwrap();
            collect_reports(false).unwrap();
            assert_eq!(rehearsed.len(), launched.len(), "{name}");
            for (rehearsed, launched) in rehearsed.iter().zip(&launched) {
                assert_eq!((rehearsed.kernel, rehearsed.shape.grid), (&*launched.kernel, launched.grid), "{name}");
            }
            products = rehearsed.iter().map(|launch| launch.kernel).filter(|name| name.starts_with("gem")).collect();
        }
        // By default, seven tokens would be too few for the prefill kernel, and three rows of logits too few for the
        // decode kernel.
        let is_expected = |name: &&str| match (hopper_from, hopper_decode_from) {
            (None, None) => name.starts_with("gemm_hopper_decode") || name.starts_with("gemv"),
            (None, _) => name.starts_with("gemm_hopper_decode"),
            _ => name.starts_with("gemm_hopper_") && !name.starts_with("gemm_hopper_decode"),
        };
        assert!(!products.is_empty() && products.iter().all(is_expected), "{products:?}");
    }
}

/// Checks that all launches of a step are dependent launches, unless the options disable them.
#[test]
fn launches_are_dependent_unless_the_options_disable_it() {
    for attention in [AttentionKernels::Quire, AttentionKernels::V1] {
        for (dependent_launches, cuda_graphs) in [(true, true), (true, false), (false, true), (false, false)] {
            let options = Options { dependent_launches, cuda_graphs, attention, ..Options::default() };
            let mut loaded = load_with("llama3", &options, 0);
            collect_reports(true).unwrap();
            loaded.step(batch(&[(1, 10), (9, 9)]));
            loaded.step(batch(&[(1, 11), (1, 10)]));
            let launched = take_reports().unwrap();
            collect_reports(false).unwrap();
            assert!(launched.len() > 20 && launched.iter().all(|launch| launch.dependent == dependent_launches));
        }
    }
}

/// Products of few tokens also normalise the rows that they add to. Only the first norm and the last, which follows the
/// selection of rows, have a launch of their own.
#[test]
fn products_compute_the_norms_that_follow_them() {
    for (name, first_and_last) in [("opt-pre", 2), ("opt-350m-like", 0), ("llama3", 2), ("gpt2", 2)] {
        let loaded = load(name, false, 0);
        let norms = |decodes| {
            let step = Rehearsal { decodes, context: 10, drafted: 0, prompt: 0, logits: decodes };
            let launches = rehearse(&loaded.backend, &*loaded.model, &loaded.layout, step).unwrap();
            launches.iter().filter(|launch| launch.kernel.contains("_norm_")).count()
        };
        assert_eq!([1, 4, 5, 8].map(norms), [first_and_last; 4], "{name}");
    }
}

/// Checks that prompts use Hopper's attention kernel if it supports the head size and the cache's
/// format, and otherwise the kernel for all GPUs.
#[test]
fn prompts_use_hoppers_attention_if_it_supports_their_heads() {
    for (name, kv_dtype, kernel) in [
        ("opt-350m-like", None, "paged_prefill_hopper_f16_64"),
        ("qwen3", None, "paged_prefill_hopper_f16_128"),
        ("opt-350m-like", Some(KvDtype::Int8), "paged_prefill_f16int8_64"),
        ("llama3", None, "paged_prefill_f16_32"),
    ] {
        let mut loaded = load_with(name, &Options { cuda_graphs: false, kv_dtype, ..Options::default() }, 0);
        collect_reports(true).unwrap();
        loaded.step(batch(&[(1, 10), (19, 19)]));
        let launched = take_reports().unwrap();
        collect_reports(false).unwrap();
        let attended: Vec<_> =
            launched.iter().map(|launch| &*launch.kernel).filter(|name| name.starts_with("paged_prefill")).collect();
        assert_eq!(attended, vec![kernel; loaded.layout.num_layers()], "{name}, {kv_dtype:?}");
    }
}

#[test]
fn steps_allocate_nothing() {
    let mut loaded = load("llama2", true, 0);
    loaded.step(batch(&[(1, 1)]));
    let free = loaded.free();
    for sequences in
        [&[(20, 20), (1, 3), (7, 30)][..], &[(1, 21), (1, 4)], &[(1, 5); 7], &[(64, 64)], &[(1, 22), (1, 5)]]
    {
        loaded.step(batch(sequences));
        assert_eq!(loaded.free(), free, "{sequences:?}");
    }
}

#[test]
fn the_papers_kernels_compute_the_same_attention() {
    let [mut own, mut v1, mut v2] = [AttentionKernels::Quire, AttentionKernels::V1, AttentionKernels::V2]
        .map(|attention| load_with("mistral", &Options { attention, ..Options::default() }, 0));
    for sequences in [&[(20, 20), (3, 3)][..], &[(1, 21), (7, 10)], &[(1, 22), (1, 11)]] {
        let [own, v1, v2] = [&mut own, &mut v1, &mut v2].map(|loaded| loaded.step(batch(sequences)));
        for (own, paper) in own.iter().zip(&v1).chain(own.iter().zip(&v2)) {
            for (own, paper) in own.top.iter().zip(&paper.top) {
                assert!((own.1 - paper.1).abs() < 2e-2, "{sequences:?}: {own:?}, {paper:?}");
            }
        }
    }
    assert_eq!(v1.backend.num_recordings() + v2.backend.num_recordings(), 0);
}

#[test]
fn v1_refuses_sequences_that_exceed_its_shared_memory() {
    assert!(PaperAttention::new(AttentionKernels::V1, 8192).unwrap().is_some());
    assert!(PaperAttention::new(AttentionKernels::V2, 131_072).unwrap().is_some());
    let error = PaperAttention::new(AttentionKernels::V1, 8193).unwrap_err().to_string();
    assert!(error.contains("8192 tokens") && error.contains("8193") && error.contains("v2"), "{error}");
}

#[test]
fn a_step_is_recorded_once_per_bucket() {
    let mut loaded = load("gpt2", true, 0);
    let mut eager = load("gpt2", false, 0);
    let steps = [
        &[(4, 4), (6, 6), (2, 2)][..],
        &[(1, 5), (1, 7), (1, 3)],
        &[(1, 6), (1, 8), (1, 4)],
        &[(1, 7)],
        &[(1, 9), (1, 5)],
    ];
    let mut recorded = Vec::new();
    for sequences in steps {
        assert_eq!(loaded.step(batch(sequences)), eager.step(batch(sequences)), "{sequences:?}");
        recorded.push(loaded.backend.num_recordings());
    }
    // Three sequences are padded to four and reuse that recording.
    assert_eq!(recorded, [0, 1, 1, 2, 3]);
    assert_eq!(eager.backend.num_recordings(), 0);
}

#[test]
fn after_a_warm_up_nothing_more_is_recorded() {
    let (Loaded { backend, model, layout, cache }, mut eager) = (load("mistral", true, 0), load("mistral", false, 0));
    let mut runner = ModelRunner::new(backend, model, cache);
    runner.warm_up(5, 16, layout.block_size, &layout.cache_groups()).unwrap();
    // The recordings are for 1, 2, 4 and 8 sequences, because five are padded to eight.
    assert_eq!(runner.backend.num_recordings(), 4);
    let params = SamplingParams::default();
    let steps = [&[(4, 4), (6, 6), (2, 2)][..], &[(1, 5), (1, 7), (1, 3)], &[(1, 6)], &[(1, 7), (1, 8)], &[(1, 1); 5]];
    for sequences in steps {
        let rows = vec![SampleRow { top: 2, ..SampleRow::new(&params, 0) }; sequences.len()];
        let sampled = runner.run(batch(sequences), &rows).unwrap().sampled;
        assert_eq!(sampled, eager.step(batch(sequences)), "{sequences:?}");
        assert_eq!(runner.backend.num_recordings(), 4, "{sequences:?}");
    }
}

#[test]
fn larger_inputs_drop_the_recordings() {
    let mut loaded = load("gpt2", true, 0);
    loaded.step(batch(&[(3, 3)]));
    loaded.step(batch(&[(1, 4)]));
    assert_eq!(loaded.backend.num_recordings(), 1);
    let mut large = batch(&[(1, 5)]);
    large.groups[0].blocks.resize(1 << 19, 0);
    let first = loaded.step(large.clone());
    assert_eq!(loaded.backend.num_recordings(), 1, "recorded again");
    assert_eq!(loaded.step(large), first);
}

#[test]
fn blocks_are_swapped_and_copied_in_every_layer() {
    assert_moves(AttentionKernels::Quire, 1, None);
}

#[test]
fn blocks_of_eight_bits_move_with_their_scales() {
    assert_moves(AttentionKernels::Quire, 1, Some(KvDtype::Int8));
}

#[test]
fn blocks_move_in_the_papers_layouts_too() {
    assert_moves(AttentionKernels::V1, 2, None);
}

/// Checks that moves reach every page of a block. A layer has `pages` pages per block.
fn assert_moves(attention: AttentionKernels, pages: usize, kv_dtype: Option<KvDtype>) {
    let options = Options { attention, cuda_graphs: false, kv_dtype, ..Options::default() };
    let mut loaded = load_with("llama3", &options, 6);
    let device = loaded.backend.queue.device().unwrap();
    let layers = pages * loaded.layout.num_layers();
    let page = loaded.layout.block_bytes() / layers;
    let memory = loaded.cache.memory().unwrap();
    // Byte `i` of block `b` in layer `l`.
    let fill = |l: usize, b: usize, i: usize| (l * 89 + b * 31 + i * 7) as u8;
    let block = |l: usize, b: usize| (0..page).map(move |i| fill(l, b, i));
    let before: Vec<u8> = (0..layers).flat_map(|l| (0..16).flat_map(move |b| block(l, b))).collect();
    device.stream.upload(&before, memory).unwrap();
    let moves = |out: &[(u32, u32)], back: &[(u32, u32)], copies: &[(u32, u32)]| {
        let [swap_out, swap_in, copies] =
            [out, back, copies].map(|list| list.iter().map(|&(src, dst)| BlockCopy { group: 0, src, dst }).collect());
        BlockMoves { swap_out, swap_in, copies }
    };
    // The step's token only writes to block 0.
    loaded.step(Batch { moves: moves(&[(3, 5), (4, 0), (5, 1)], &[], &[(7, 3)]), ..batch(&[(1, 1)]) });
    // A step without tokens.
    let only_moves = moves(&[(9, 2)], &[(0, 9), (1, 4), (5, 10)], &[(8, 5), (10, 11)]);
    let inputs = loaded.backend.upload(Batch { moves: only_moves, ..Batch::default() }, &[]);
    loaded.backend.move_blocks(&mut loaded.cache, &inputs);
    let want = [0, 1, 2, 7, 5, 8, 6, 7, 8, 4, 3, 3, 12, 13, 14, 15];
    let device = loaded.backend.queue.device().unwrap();
    let after = loaded.cache.memory().unwrap().to_vec(&device.stream).unwrap();
    for layer in 0..layers {
        for (b, &from) in want.iter().enumerate().skip(1) {
            let at = (layer * 16 + b) * page;
            assert!(after[at..at + page].iter().copied().eq(block(layer, from)), "layer {layer}, block {b}");
        }
    }
}
