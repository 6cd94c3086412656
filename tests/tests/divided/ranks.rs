//! The step of a divided model, worker by worker: all workers compute the same bits, with the expected number of sums.

use std::thread;

use engine::DType;
use engine::ModelFiles;
use engine::tools::backend::Backend;
use engine::tools::backend::cpu::CpuBackend;
use engine::tools::backend::cuda::CudaBackend;
use engine::tools::batch::{Batch, Span};
use engine::tools::config::ModelConfig;
use engine::tools::kv::KvLayout;
use engine::tools::memory_plan::{Rehearsal, plan_memory, rehearse};
use engine::tools::model::{self, Model};
use engine::tools::parallel::{RankGroup, Shard};
use engine::{Options, SchedulerOptions};
use launch::Driver;

use super::{configure, one_on_the_emulator};
use tests::models::{LAYERS, MODELS, make};

/// A worker's shard of a model.
struct Part<B: Backend> {
    backend: B,
    model: Box<dyn Model<B>>,
    layout: KvLayout,
}

/// Loads a worker's shard of a model into its backend.
fn part<B: Backend>(files: &ModelFiles, config: &ModelConfig, backend: B, dtype: DType) -> Part<B> {
    let mut weights = files.weights(Some(dtype)).unwrap();
    weights.strip_prefix(config.family.weight_prefixes());
    let own = backend.shard().config(config).unwrap();
    let layout = KvLayout::uniform(own.layers, own.kv_heads, own.head_dim, 16, dtype.into());
    let model = model::load(&backend, config, &mut weights, config.max_positions).unwrap();
    Part { backend, model, layout }
}

/// Builds a step of two prompts that requests all hidden states.
fn batch() -> Batch {
    let mut batch = Batch::new(1);
    for (first, len) in [(1u32, 37), (4, 5)] {
        batch.spans.push(Span { start: batch.tokens.len(), len, context: len, table: batch.table_len() });
        batch.groups[0].blocks.extend((0..len.div_ceil(16) as u32).map(|block| first + block));
        batch.tokens.extend((0..len as u32).map(|i| 3 + 73 * i % 511));
        batch.positions.extend(0..len as u32);
        batch.groups[0].slots.extend((0..len as u32).map(|i| 16 * first + i));
    }
    batch.hidden_rows = (0..batch.tokens.len() as u32).collect();
    batch
}

/// Returns the final hidden states of all tokens of [`batch`].
fn hidden<B: Backend>(part: &Part<B>) -> Vec<f32> {
    let Part { backend, model, layout } = part;
    let mut cache = backend.kv_cache(layout.clone(), 8, 0).unwrap();
    let inputs = backend.upload(batch(), &[]);
    backend.move_blocks(&mut cache, &inputs);
    let mut rows = None;
    backend.compute(&inputs, || {
        let x = model.forward(backend, &mut cache, &inputs);
        rows = Some(model.final_hidden(backend, backend.hidden_rows(&x, &inputs)));
        None
    });
    backend.download(&rows.unwrap()).unwrap()
}

/// Runs all workers in parallel, and returns the result of each.
fn on_all<B: Backend>(parts: Vec<Part<B>>) -> Vec<Vec<f32>> {
    thread::scope(|scope| {
        let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || hidden(&part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Asserts that all workers have the same bits, close to the undivided model's result.
fn assert_same(at: &str, found: &[Vec<f32>], whole: &[f32], tolerance: f32) {
    assert!(found.iter().all(|own| *own == found[0]), "{at}: ranks have different bits");
    assert_eq!(found[0].len(), whole.len(), "{at}");
    let off = found[0].iter().zip(whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= tolerance, "{at}: hidden states are off by {off}");
}

#[test]
fn cpu_workers_have_the_same_bits_with_two_sums_per_layer() {
    for name in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let files = make(name, directory.path());
        let config = files.config().unwrap();
        let whole = hidden(&part(&files, &config, CpuBackend::new(Some(1)).unwrap(), DType::F32));
        for workers in [2, 4] {
            let group = RankGroup::new(workers);
            let worker = |rank| CpuBackend::new(Some(1)).unwrap().with_rank(group.rank(rank));
            let parts = (0..workers).map(|rank| part(&files, &config, worker(rank), DType::F32)).collect();
            assert_same(&format!("{name}, {workers} workers"), &on_all(parts), &whole, 1e-4);
            assert_eq!(group.sums(), 1 + 2 * LAYERS, "{name}, {workers} workers");
        }
    }
}

#[test]
fn emulated_workers_have_the_same_bits_with_two_sums_per_layer() {
    configure();
    let driver = Driver::emulator().unwrap();
    let options = Options { cuda_graphs: false, ..one_on_the_emulator() };
    let scheduler = SchedulerOptions { max_batch_tokens: 64, max_num_seqs: 8, ..SchedulerOptions::default() };
    for name in MODELS {
        let directory = tempfile::tempdir().unwrap();
        let files = make(name, directory.path());
        let config = files.config().unwrap();
        let whole = hidden(&part(&files, &config, CpuBackend::new(Some(1)).unwrap(), DType::F32));
        for workers in [2, 4] {
            driver.emulate_devices(workers as u32).unwrap();
            let worker = |rank| {
                let shard = Shard { rank, of: workers, ..Shard::WHOLE };
                let own = shard.config(&config).unwrap();
                let types = (DType::F16, DType::F16.into());
                CudaBackend::new(driver, rank as u32, &own, shard, &options, types, false).unwrap()
            };
            let mut backends: Vec<_> = (0..workers).map(worker).collect();
            let _group = CudaBackend::connect(&mut backends).unwrap();
            let ready = |backend| {
                let part = part(&files, &config, backend, DType::F16);
                plan_memory(&part.backend, &*part.model, &part.layout, scheduler, 0.9).unwrap();
                let step = Rehearsal { decodes: 2, context: 10, drafted: 0, prompt: 5, logits: 3 };
                let launches = rehearse(&part.backend, &*part.model, &part.layout, step).unwrap();
                let count = |name: &str| launches.iter().filter(|launch| launch.kernel.starts_with(name)).count();
                let counts = (count("all_reduce"), count("gather_logits"));
                assert_eq!(counts, (1 + 2 * LAYERS, 1), "{name}, {workers} workers");
                part
            };
            let parts = backends.into_iter().map(ready).collect();
            assert_same(&format!("{name}, {workers} workers"), &on_all(parts), &whole, 0.05);
        }
    }
}
