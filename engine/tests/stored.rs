//! Random schedules on real models, with keys and values in every type that the CPU stores. Requests are batched, cut
//! into chunks, swapped out, recomputed, drafted, and found in the cache or the swap space. Each still gets bitwise the
//! same logprobs as alone.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;
mod oracle;
mod schedules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use engine::DType;
use engine::ModelFiles;
use engine::SchedulerOptions;
use engine::tools::backend::Backend;
use engine::tools::backend::cpu::CpuBackend;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::group::{OwnerId, RequestId};
use engine::tools::kv::{KvDtype, KvLayout};
use engine::tools::model;
use engine::tools::runner::ModelRunner;
use proptest::prelude::*;
use schedules::{Answer, OWNERS, Request, Setup, alone, answer, arrive, cut_short, request, setup};
use tempfile::TempDir;

/// A model with full attention, one with a sliding window, and one whose layers have both in turn.
const MODELS: [&str; 3] = ["llama3", "mistral", "mixed"];

/// The files of a model.
fn files(name: &str) -> ModelFiles {
    static MIXED: OnceLock<TempDir> = OnceLock::new();
    let mixed = || {
        let (from, to) = (common::model("qwen3"), tempfile::tempdir().unwrap());
        for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
        }
        let mut config = common::json("qwen3", "config.json");
        config["use_sliding_window"] = true.into();
        config["sliding_window"] = 13.into();
        config["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"].as_slice().into();
        std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
        to
    };
    ModelFiles::directory(match name {
        "mixed" => MIXED.get_or_init(mixed).path().to_path_buf(),
        name => common::model(name),
    })
    .unwrap()
}

/// The layout of a model's cache.
fn layout(name: &str, dtype: KvDtype, block_size: usize) -> KvLayout {
    KvLayout::new(&files(name).config().unwrap().memory_layers(), block_size, dtype)
}

/// An engine of a reference model.
fn engine(name: &str, dtype: KvDtype, config: EngineConfig) -> Engine {
    let files = files(name);
    let shape = files.config().unwrap();
    let mut weights = files.weights(None).unwrap();
    weights.strip_prefix(shape.family.weight_prefixes());
    let backend = CpuBackend::new(Some(1)).unwrap();
    let model = model::load(&backend, &shape, &mut weights, shape.max_positions).unwrap();
    let layout = layout(name, dtype, config.block_size);
    let groups = layout.cache_groups();
    let cache = backend.kv_cache(layout, config.num_blocks, config.swap_blocks).unwrap();
    let eos = files.generation_config().unwrap().eos_token_ids_or(&shape);
    let config = EngineConfig { groups, max_len: 200, vocab_size: shape.vocab_size, eos, ..config };
    Engine::new(config, Box::new(ModelRunner::new(backend, model, cache)))
}

/// Answers all requests except those that are cut.
fn serve(mut engine: Engine, requests: &[Request], setup: &Setup) -> BTreeMap<usize, Answer> {
    for prefix in &setup.pinned {
        engine.pin_prefix(prefix.tokens()).unwrap();
    }
    let owners: Vec<OwnerId> = (0..OWNERS).map(|_| engine.new_owner()).collect();
    let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
    let (mut outputs, mut cut) = (BTreeMap::new(), BTreeSet::new());
    for step in 0.. {
        arrive(&mut engine, step, requests, &owners, &mut ids);
        cut_short(&mut engine, step, requests, &ids, &outputs, &mut cut);
        outputs.extend(engine.step().unwrap().finished.into_iter().map(|done| (ids[&done.id], answer(done))));
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        if step > 60 && !engine.has_work() {
            break;
        }
        assert!(step < 20_000, "no progress");
    }
    assert_eq!(outputs.len(), requests.len(), "a request was lost");
    outputs.retain(|i, _| !cut.contains(i));
    outputs
}

fn check(dtype: KvDtype, model: usize, requests: &[Request], setup: &Setup) -> Result<(), TestCaseError> {
    let name = MODELS[model];
    let setup = Setup { groups: layout(name, dtype, setup.block_size).cache_groups(), ..setup.clone() };
    let outputs = serve(engine(name, dtype, setup.config(requests)), requests, &setup);
    let scheduler = SchedulerOptions { prefix_caching: false, ..oracle::scheduler_options() };
    // With the same block size, because attention sums block by block.
    let roomy = EngineConfig { swap_blocks: 0, scheduler, ..oracle::config(1000, setup.block_size) };
    for (i, got) in outputs {
        prop_assert_eq!(got, alone(engine(name, dtype, roomy.clone()), &requests[i]), "{}, {}", name, dtype);
    }
    Ok(())
}

macro_rules! every_type {
    ($($name:ident: $dtype:expr,)*) => {
        proptest! {
            #![proptest_config(schedules::cases(25))]

            $(#[test]
            fn $name(model in 0..MODELS.len(), requests in prop::collection::vec(request(), 1..10), setup in setup()) {
                check($dtype, model, &requests, &setup)?;
            })*
        }
    };
}

every_type! {
    schedules_with_a_cache_in_f32: KvDtype::Float(DType::F32),
    schedules_with_a_cache_in_f16: KvDtype::Float(DType::F16),
    schedules_with_a_cache_in_int8: KvDtype::Int8,
    schedules_with_a_cache_in_fp8: KvDtype::Fp8,
}

/// Random schedules may miss this case: conversations take turns in a cache that holds only one of them.
#[test]
fn conversations_that_take_turns_come_back_from_the_swap_space() {
    for name in MODELS {
        for dtype in [KvDtype::Float(DType::F32), KvDtype::Int8, KvDtype::Fp8] {
            let tight = EngineConfig { swap_blocks: 60, ..oracle::config(9, 8) };
            let roomy = EngineConfig { swap_blocks: 0, ..oracle::config(100, 8) };
            let mut engine = engine(name, dtype, tight);
            let mut texts: Vec<Vec<u32>> =
                (0..3).map(|i| (0..20).map(|at| 1 + (at * (i + 2) + i) % 300).collect()).collect();
            for turn in 0..4u32 {
                for text in &mut texts {
                    let request = Request {
                        prompt: text.clone(),
                        params: engine::SamplingParams { logprobs: Some(3), ..oracle::greedy(6) },
                        owner: 0,
                        priority: 0,
                        salt: None,
                        arrives: 0,
                        cut: None,
                    };
                    let before = engine.stats().computed_tokens;
                    engine.add(request.prompt.clone(), request.params.clone()).unwrap();
                    let done = oracle::finish(&mut engine).remove(0);
                    let got = answer(done);
                    assert_eq!(
                        got,
                        alone(self::engine(name, dtype, roomy.clone()), &request),
                        "{name}, {dtype}, turn {turn}"
                    );
                    // Six tokens are new, five tokens of the answer are computed, and up to seven were in a block that
                    // was not full.
                    let computed = engine.stats().computed_tokens - before;
                    assert!(turn == 0 || computed <= 6 + 5 + 7, "{name}, {dtype}, turn {turn}: {computed}");
                    text.extend(&got.0[0].tokens);
                    text.extend((0..5).map(|i| 301 + (turn * 5 + i) % 100));
                }
            }
            // When a conversation's turn comes again, little of it is left in the cache.
            let (from_swap, all) = (engine.stats().swap_hit_tokens, engine.stats().hit_tokens);
            assert!(all == 3 * (24 + 32 + 40) && from_swap > all / 2, "{name}, {dtype}: {from_swap} of {all}");
        }
    }
}
