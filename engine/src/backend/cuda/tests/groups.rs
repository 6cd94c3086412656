//! Models whose layers form several groups: their results, recordings, workers, and the moves of their blocks.

use std::ops::Range;

use super::parallel::{connect, step as step_of_workers};
use super::*;
use crate::backend::cpu::{CpuBackend, CpuKvCache};
use crate::batch::GroupTables;
use crate::config::ModelFamily;

/// Qwen 3 with windows in the first and last of its three layers. A page holds a block of these, or two of the layer
/// between them.
fn mixed() -> ModelConfig {
    let mut config = open("qwen3").1;
    let ModelFamily::Decoder(decoder) = &mut config.family else { panic!("Qwen is a decoder") };
    decoder.layers[0].window = Some(20);
    decoder.layers[2].window = Some(20);
    config
}

fn load_mixed(options: &Options, swap_pages: usize) -> Loaded {
    load_config("qwen3", &mixed(), options, swap_pages)
}

/// Like [`super::batch`], in two pages for each sequence and group.
fn batch(layout: &KvLayout, sequences: &[(usize, usize)]) -> Batch {
    let mut batch = super::batch(sequences);
    let (groups, one) = (layout.cache_groups(), batch.groups.remove(0));
    for (at, group) in groups.iter().enumerate() {
        // The id of one of a sequence's two blocks.
        let id = |block: u32| {
            let (sequence, block) = (block as usize / 2, block as usize % 2);
            let page = 2 * (sequence * groups.len() + at);
            ((page * group.blocks_per_page + block) * group.id_step) as u32
        };
        let blocks = one.blocks.iter().map(|&block| id(block)).collect();
        let slots = one.slots.iter().map(|slot| id(slot / 16) * 16 + slot % 16).collect();
        batch.groups.push(GroupTables { blocks, slots });
    }
    batch
}

fn sampled_everywhere(layout: &KvLayout, sequences: &[(usize, usize)]) -> Batch {
    let batch = batch(layout, sequences);
    Batch { logit_rows: (0..batch.tokens.len() as u32).collect(), ..batch }
}

/// The same model on the CPU, with a cache of the same type.
struct Reference {
    backend: CpuBackend,
    model: Box<dyn Model<CpuBackend>>,
    cache: CpuKvCache,
}

impl Reference {
    fn new(layout: &KvLayout) -> Self {
        let (files, config, backend) = (open("qwen3").0, mixed(), CpuBackend::new(Some(1)).unwrap());
        let mut weights = files.weights(Some(DType::F16)).unwrap();
        weights.strip_prefix(config.family.weight_prefixes());
        let model = model::load(&backend, &config, &mut weights, config.max_positions).unwrap();
        let layout = KvLayout::new(&config.memory_layers(), layout.block_size, layout.dtype);
        let cache = backend.kv_cache(layout, PAGES, 0).unwrap();
        Reference { backend, model, cache }
    }

    fn step(&mut self, batch: Batch) -> Vec<Sampled> {
        let Reference { backend, model, cache } = self;
        let params = SamplingParams::default();
        let rows = vec![SampleRow { top: 2, ..SampleRow::new(&params, 0) }; batch.logit_rows.len()];
        let inputs = backend.upload(batch, &rows);
        let hidden = model.forward(backend, cache, &inputs);
        let logits = model.logits(backend, backend.logit_rows(&hidden, &inputs));
        backend.sample(&logits, &inputs, &rows).unwrap()
    }
}

/// Asserts that the logprobs of the likeliest tokens differ by less than `tolerance`.
#[track_caller]
fn assert_near(got: &[Sampled], want: &[Sampled], tolerance: f32, at: &str) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        for (got, want) in got.top.iter().zip(&want.top) {
            assert!((got.1 - want.1).abs() < tolerance, "{at}: {got:?}, {want:?}");
        }
    }
}

/// Prompts, decode steps and drafts. Contexts exceed the window.
fn steps(layout: &KvLayout) -> Vec<Batch> {
    let plain = [&[(20, 20), (3, 3)][..], &[(1, 21), (20, 23)], &[(1, 22), (1, 24)], &[(1, 23), (1, 25), (7, 7)]];
    let plain = plain.into_iter().map(|sequences| batch(layout, sequences));
    let drafted = [&[(3, 26), (2, 27)][..], &[(4, 30), (1, 28)]];
    plain.chain(drafted.map(|sequences| sampled_everywhere(layout, sequences))).collect()
}

#[test]
fn groups_give_the_same_results_as_on_the_cpu() {
    let options = |attention, kv_dtype, cuda_graphs| Options { attention, kv_dtype, cuda_graphs, ..Options::default() };
    for (options, tolerance) in [
        (options(AttentionKernels::Quire, None, true), 2e-2),
        (options(AttentionKernels::Quire, Some(KvDtype::Int8), false), 0.1),
        (options(AttentionKernels::V1, None, false), 2e-2),
        (options(AttentionKernels::V2, None, false), 2e-2),
    ] {
        let mut loaded = load_mixed(&options, 0);
        assert_eq!(loaded.layout.cache_groups().iter().map(|group| group.blocks_per_page).collect::<Vec<_>>(), [1, 2]);
        let mut reference = Reference::new(&loaded.layout);
        for (i, batch) in steps(&loaded.layout).into_iter().enumerate() {
            let at = format!("{:?}, {}, step {i}", options.attention, loaded.layout.dtype);
            assert_near(&loaded.step(batch.clone()), &reference.step(batch), tolerance, &at);
        }
    }
}

#[test]
fn recorded_steps_of_several_groups_equal_others() {
    let options = |cuda_graphs| Options { cuda_graphs, ..Options::default() };
    let [mut loaded, mut eager] = [true, false].map(|records| load_mixed(&options(records), 0));
    let layout = loaded.layout.clone();
    let mut all = steps(&layout);
    // The same recordings with tables of other lengths.
    all.push(batch(&layout, &[(1, 31), (1, 1)]));
    all.push(sampled_everywhere(&layout, &[(1, 32), (4, 6)]));
    for (i, step) in all.into_iter().enumerate() {
        assert_eq!(loaded.step(step.clone()), eager.step(step), "step {i}");
    }
    assert_eq!((loaded.backend.num_recordings(), eager.backend.num_recordings()), (2, 0));
}

#[test]
fn rehearsals_note_the_launches_of_several_groups() {
    for attention in [AttentionKernels::Quire, AttentionKernels::V2] {
        let options = Options { cuda_graphs: false, attention, ..Options::default() };
        let mut loaded = load_mixed(&options, 0);
        let layout = loaded.layout.clone();
        let step = Rehearsal { decodes: 2, context: 10, drafted: 0, prompt: 20, logits: 3 };
        let rehearsed = rehearse(&loaded.backend, &*loaded.model, &layout, step).unwrap();
        collect_reports(true).unwrap();
        loaded.step(batch(&layout, &[(1, 10), (1, 10), (20, 20)]));
        let launched = take_reports().unwrap();
        collect_reports(false).unwrap();
        let rehearsed: Vec<_> = rehearsed.iter().map(|launch| (launch.kernel, launch.shape.grid)).collect();
        let launched: Vec<_> = launched.iter().map(|launch| (&*launch.kernel, launch.grid)).collect();
        assert_eq!(rehearsed, launched, "{attention:?}");
    }
}

#[test]
fn workers_with_several_groups_match_one_gpu() {
    let mut whole = load_mixed(&Options { cuda_graphs: false, ..Options::default() }, 0);
    let mut workers = connect("qwen3", &mixed(), 2);
    for (i, batch) in steps(&whole.layout).into_iter().enumerate() {
        assert_near(&step_of_workers(&mut workers, &batch), &whole.step(batch), 2e-2, &format!("step {i}"));
    }
}

#[test]
fn warm_up_records_the_steps_of_several_groups() {
    let Loaded { backend, model, layout, cache } = load_mixed(&Options::default(), 0);
    let mut runner = ModelRunner::new(backend, model, cache);
    runner.warm_up(2, PAGES, layout.block_size, &layout.cache_groups()).unwrap();
    let params = SamplingParams::default();
    let rows = vec![SampleRow { top: 2, ..SampleRow::new(&params, 0) }; 2];
    let mut reference = Reference::new(&layout);
    for sequences in [[(5, 5), (9, 9)], [(1, 6), (1, 10)]] {
        let batch = batch(&layout, &sequences);
        let sampled = runner.run(batch.clone(), &rows).unwrap().sampled;
        assert_near(&sampled, &reference.step(batch), 2e-2, &format!("{sequences:?}"));
    }
    assert_eq!(runner.backend.num_recordings(), 2);
}

/// The bytes of a block in a cache or swap space of `pages` pages, whose keys and values are in `arrays` arrays.
fn block(layout: &KvLayout, pages: usize, arrays: usize, (group, block): (u32, u32)) -> Vec<Range<usize>> {
    let (bytes, all) = (layout.group_block_bytes(group as usize) / arrays, pages * layout.page_bytes() / arrays);
    (0..arrays).map(|array| array * all + block as usize * bytes).map(|at| at..at + bytes).collect()
}

/// Checks the bytes of the whole cache after moves in both groups. In the same step, a page passes from one group to the
/// other.
fn assert_moves(attention: AttentionKernels, arrays: usize, kv_dtype: Option<KvDtype>) {
    let options = Options { attention, cuda_graphs: false, kv_dtype, ..Options::default() };
    let mut loaded = load_mixed(&options, 6);
    let (layout, bytes) = (loaded.layout.clone(), loaded.cache.memory().unwrap().len());
    assert_eq!(bytes, PAGES * layout.page_bytes());
    let mut cache: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251 + i / 65_521) as u8).collect();
    let mut swap = vec![0; 6 * layout.page_bytes()];
    let device = loaded.backend.queue.device().unwrap();
    device.stream.upload(&cache, loaded.cache.memory().unwrap()).unwrap();
    // Group, source and destination. Blocks 6 and 7 of group 1 are page 3, which then gets block 3 of group 0.
    let list = |moves: &[(u32, u32, u32)]| -> Vec<BlockCopy> {
        moves.iter().map(|&(group, src, dst)| BlockCopy { group, src, dst }).collect()
    };
    let swap_out = list(&[(1, 6, 4), (0, 9, 0), (1, 7, 5), (0, 10, 1), (1, 30, 11)]);
    let moves = BlockMoves { swap_out, copies: list(&[(0, 4, 5), (1, 2, 3), (0, 11, 12)]), ..BlockMoves::default() };
    let back = BlockMoves {
        swap_out: list(&[(0, 20, 3)]),
        swap_in: list(&[(0, 0, 3), (1, 5, 19), (0, 1, 8), (1, 4, 18), (1, 11, 60)]),
        copies: list(&[(1, 60, 61), (0, 3, 2)]),
    };
    for moves in [moves, back] {
        let inputs = loaded.backend.upload(Batch { moves: moves.clone(), ..Batch::default() }, &[]);
        loaded.backend.move_blocks(&mut loaded.cache, &inputs);
        let cached = |at| block(&layout, PAGES, arrays, at);
        // A swapped block is one run of bytes, even with two arrays.
        let swapped = |at: (u32, u32)| block(&layout, 6, 1, at).remove(0);
        for BlockCopy { group, src, dst } in moves.swap_out {
            let block: Vec<u8> = cached((group, src)).into_iter().flat_map(|range| cache[range].to_vec()).collect();
            swap[swapped((group, dst))].copy_from_slice(&block);
        }
        for BlockCopy { group, src, dst } in moves.swap_in {
            let mut block = &swap[swapped((group, src))];
            for range in cached((group, dst)) {
                let (part, rest) = block.split_at(range.len());
                cache[range].copy_from_slice(part);
                block = rest;
            }
        }
        for BlockCopy { group, src, dst } in moves.copies {
            for (from, to) in cached((group, src)).into_iter().zip(cached((group, dst))) {
                cache.copy_within(from, to.start);
            }
        }
    }
    let device = loaded.backend.queue.device().unwrap();
    let found = loaded.cache.memory().unwrap().to_vec(&device.stream).unwrap();
    let wrong = found.iter().zip(&cache).position(|(found, want)| found != want);
    assert_eq!(wrong, None, "the first wrong byte");
}

#[test]
fn blocks_of_several_groups_move() {
    assert_moves(AttentionKernels::Quire, 1, None);
    assert_moves(AttentionKernels::Quire, 1, Some(KvDtype::Int8));
    assert_moves(AttentionKernels::V2, 2, None);
}
