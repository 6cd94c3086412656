//! Compares workers on several emulated GPUs with the whole model on one.

use std::thread;

use super::*;

/// Loads and connects the workers of a golden model.
fn workers(name: &str, of: usize) -> Vec<Loaded> {
    connect(name, &open(name).1, of)
}

/// Loads and connects the workers of a model with this configuration.
pub fn connect(name: &str, config: &ModelConfig, of: usize) -> Vec<Loaded> {
    let driver = Driver::emulator().unwrap();
    driver.emulate_devices(of as u32).unwrap();
    let worker = |rank| {
        let shard = Shard { rank, of, ..Shard::WHOLE };
        let own = shard.config(config).unwrap();
        let types = (DType::F16, DType::F16.into());
        CudaBackend::new(driver, rank as u32, &own, shard, &Options::default(), types, false).unwrap()
    };
    let mut backends: Vec<_> = (0..of).map(worker).collect();
    CudaBackend::connect(&mut backends).unwrap();
    backends.into_iter().map(|backend| ready((name, config), backend, 0, DType::F16.into())).collect()
}

/// Runs a step on all workers and returns the samples of the first.
pub fn step(workers: &mut [Loaded], batch: &Batch) -> Vec<Sampled> {
    let (first, others) = workers.split_first_mut().unwrap();
    thread::scope(|scope| {
        for Loaded { backend, model, cache, .. } in others {
            scope.spawn(move || {
                let inputs = backend.upload(batch.clone(), &[]);
                let compute = || {
                    let hidden = model.forward(backend, cache, &inputs);
                    Some(backend.gather_logits(model.logits(backend, backend.logit_rows(&hidden, &inputs))))
                };
                drop(backend.compute(&inputs, compute));
                backend.finish().unwrap();
            });
        }
        first.step(batch.clone())
    })
}

#[test]
fn each_worker_has_its_part_and_two_sums_per_layer() {
    let whole = load("llama3", true, 0);
    for of in [2, 4] {
        let layers = open("llama3").1.layers;
        for (rank, Loaded { backend, model, layout, cache }) in workers("llama3", of).into_iter().enumerate() {
            let step = Rehearsal { decodes: 2, context: 10, drafted: 0, prompt: 5, logits: 3 };
            let launches = rehearse(&backend, &*model, &layout, step).unwrap();
            let count = |name: &str| launches.iter().filter(|launch| launch.kernel.starts_with(name)).count();
            assert_eq!((count("all_reduce_f16"), count("gather_logits")), (1 + 2 * layers, 1), "{rank} of {of}");
            // Only the last norm, for the rows whose logits are needed, has a launch of its own. All others are part of
            // the sums.
            assert_eq!(count("rms_norm"), 1, "{rank} of {of}");
            // Each worker has all norms, and at least one key-value head even if there are fewer heads than workers.
            let of_whole = whole.backend.weight_bytes() as f64 / backend.weight_bytes() as f64;
            assert!(of_whole > 0.7 * of as f64 && of_whole <= of as f64, "{rank} of {of}: 1/{of_whole}");
            // The model has two key-value heads, so with two or more workers each has one.
            let bytes = |cache: &CudaKvCache| cache.memory().unwrap().len();
            assert_eq!(bytes(&cache), bytes(&whole.cache) / 2, "{rank} of {of}");
        }
    }
}

#[test]
fn steps_on_several_gpus_match_one_gpu_and_allocate_nothing() {
    let mut whole = load("qwen3", false, 0);
    let mut workers = workers("qwen3", 2);
    let first = batch(&[(1, 1)]);
    step(&mut workers, &first);
    whole.step(first);
    let free: Vec<_> = workers.iter().map(Loaded::free).collect();
    // Prompts, then decode steps that are recorded, replayed, and of another size, then steps with drafts, recorded and
    // replayed.
    let sequences =
        [&[(20, 20), (3, 3)][..], &[(1, 21), (7, 10)], &[(1, 22), (1, 11)], &[(1, 23), (1, 12)], &[(1, 24)]];
    let with_drafts = [&[(3, 27), (2, 14)][..], &[(2, 29), (3, 17)]];
    let steps = sequences.map(|sequences| (sequences, batch(sequences))).into_iter();
    for (sequences, batch) in steps.chain(with_drafts.map(|sequences| (sequences, sampled_everywhere(sequences)))) {
        let found = step(&mut workers, &batch);
        assert_eq!(found.len(), batch.logit_rows.len());
        for (found, wanted) in found.iter().zip(whole.step(batch)) {
            for (found, wanted) in found.top.iter().zip(&wanted.top) {
                assert!((found.1 - wanted.1).abs() < 2e-2, "{sequences:?}: {found:?}, {wanted:?}");
            }
        }
        assert!(workers.iter().map(Loaded::free).eq(free.iter().copied()), "{sequences:?}");
    }
    assert!(workers.iter().all(|worker| worker.backend.num_recordings() == 3));
}
