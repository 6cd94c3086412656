//! An unsupported option gives a clear error or a fallback, and a failure on the GPU is an error that does not end the
//! process.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::sync::{Mutex, MutexGuard};

use emulator::LaunchOptions;
use emulator::driver::{DeviceOptions, configure, set_launch_options};
use engine::DType;
use engine::Error;
use engine::KvDtype;
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{AttentionKernels, Device, Llm, Options, Prompt, SchedulerOptions};
use tests::{golden, golden_dir};

/// Reconfigures the emulated device for contexts that are created while the guard lives.
fn emulator(options: DeviceOptions) -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    configure(DeviceOptions { multiprocessors: 4, ..options });
    alone
}

fn options() -> Options {
    Options { device: Device::Emulator, kv_memory: Some(1 << 20), ..Options::default() }
}

fn load(options: &Options) -> Result<Llm, Error> {
    Llm::load(&ModelFiles::directory(golden_dir("opt-bin")).unwrap(), options)
}

fn refused(options: &Options, parts: &[&str]) -> Error {
    let error = load(options).err().unwrap();
    let message = error.to_string();
    assert!(parts.iter().all(|part| message.contains(part)), "{message:?} does not say {parts:?}");
    error
}

#[test]
fn a_gpu_that_is_too_old_is_named() {
    let _alone = emulator(DeviceOptions { capability: (7, 5), ..DeviceOptions::default() });
    let error = refused(&options(), &["no GPU can be used", "7.5", "8.0"]);
    assert!(matches!(error, Error::Device(_)));
}

#[test]
fn an_out_of_memory_error_suggests_remedies() {
    {
        let _alone = emulator(DeviceOptions { memory: 500 << 10, ..DeviceOptions::default() });
        refused(&options(), &["not enough memory", "the weights need", "has", "left"]);
    }
    {
        // Enough memory for the weights, but not for the activations of a step of 2,048 tokens.
        let _alone = emulator(DeviceOptions { memory: 3 << 20, ..DeviceOptions::default() });
        refused(&options(), &["not enough memory", "the activations need"]);
    }
    let _alone = emulator(DeviceOptions { memory: 64 << 20, ..DeviceOptions::default() });
    let tight = Options { gpu_memory_utilization: 0.01, kv_memory: None, ..options() };
    refused(&tight, &["not enough memory", "gpu-memory-utilization (0.01)", "max-batch-tokens"]);
    refused(&Options { kv_memory: Some(1 << 30), ..options() }, &["not enough memory", "the KV cache need"]);
}

#[test]
fn the_utilization_determines_the_number_of_blocks() {
    let _alone = emulator(DeviceOptions { memory: 64 << 20, ..DeviceOptions::default() });
    let blocks = |share: f32, tokens: usize| {
        let given = Options {
            gpu_memory_utilization: share,
            kv_memory: None,
            scheduler: SchedulerOptions { max_batch_tokens: tokens, ..options().scheduler },
            ..options()
        };
        let llm = load(&given).unwrap();
        let memory = llm.device().memory.unwrap();
        let block = llm.kv_layout().block_bytes();
        let num_blocks = llm.engine().config().num_blocks;
        assert_eq!(num_blocks, memory.kv_cache / block);
        assert!(memory.used + num_blocks * block <= (64 << 20) * (share * 100.0) as usize / 100);
        (num_blocks, memory.activations)
    };
    let (small, _) = blocks(0.6, 512);
    let (large, few) = blocks(0.9, 512);
    let (fewer, many) = blocks(0.9, 2048);
    assert!(small < large && fewer < large && few < many, "{small} {large} {fewer}, {few} {many}");
}

#[test]
fn unsupported_options_are_refused() {
    let _alone = emulator(DeviceOptions::default());
    let dtype = Some(DType::F32);
    refused(&Options { dtype, ..options() }, &["dtype", "f16 and bf16"]);
    refused(&Options { kv_dtype: dtype.map(KvDtype::from), ..options() }, &["kv-dtype", "f16"]);
    let attention = AttentionKernels::V1;
    refused(
        &Options { kv_dtype: Some(KvDtype::Int8), attention, ..options() },
        &["kv-dtype", "the paper's kernels", "not int8"],
    );
    refused(&Options { block_size: 12, ..options() }, &["blocks of 12 tokens"]);
    refused(&Options { gpu_memory_utilization: 1.5, ..options() }, &["gpu-memory-utilization"]);
    let mut llm = load(&options()).unwrap();
    let beam = Some(Beam { width: 1024, length_penalty: 1.0, early_stopping: EarlyStopping::Never });
    let params = SamplingParams { beam, n: 1, ..SamplingParams::default() };
    let error = llm.add(&Prompt::Tokens(vec![5]), params).unwrap_err();
    assert!(matches!(error, Error::Request(_)), "{error}");
}

#[test]
fn too_few_gpus_are_an_error_with_their_number() {
    let _alone = emulator(DeviceOptions::default());
    let divided = |tensor_parallel_size| Options { tensor_parallel_size, ..options() };
    refused(&divided(16), &["tensor-parallel-size", "at most 8 GPUs", "not 16"]);
    refused(&divided(4), &["tensor-parallel-size", "cannot be divided among 4 workers"]);
    // This machine has no GPUs, but the emulator makes as many as requested.
    let mut llm = load(&divided(2)).unwrap();
    assert_eq!(llm.device().name, "2 x Quire emulator");
    llm.generate(&[Prompt::Tokens(vec![5])], &SamplingParams { max_tokens: 2, ..SamplingParams::default() }).unwrap();
}

#[test]
fn a_failing_gpu_fails_the_step_on_all_gpus_without_a_hang() {
    let _alone = emulator(DeviceOptions { devices: 2, ..DeviceOptions::default() });
    let prompt = Prompt::Tokens(vec![5, 6, 7]);
    let two = || SamplingParams { max_tokens: 2, ..SamplingParams::default() };
    for worker in [1, 0] {
        let mut llm = load(&Options { tensor_parallel_size: 2, ..options() }).unwrap();
        if worker == 0 {
            // After the first step, this thread's current context is the first worker's. Before it, it is the last
            // worker's.
            llm.generate(std::slice::from_ref(&prompt), &two()).unwrap();
        }
        set_launch_options(LaunchOptions { instruction_limit: 10, ..LaunchOptions::default() }).unwrap();
        llm.add(&prompt, two()).unwrap();
        let error = llm.step().unwrap_err();
        assert!(matches!(error, Error::Gpu(_)), "{error}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("in kernel `") && cause.contains(&format!("device {worker}")), "{cause}");
        llm.add(&prompt, two()).unwrap();
        assert!(llm.step().is_err(), "no other step is computed");
        assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
        drop(llm);
        // After the model is loaded again, the same GPUs work.
        let mut llm = load(&Options { tensor_parallel_size: 2, ..options() }).unwrap();
        llm.generate(std::slice::from_ref(&prompt), &two()).unwrap();
    }
}

#[test]
fn gpus_without_peer_access_divide_a_model_through_host_memory() {
    let _alone = emulator(DeviceOptions { devices: 2, peer_access: false, ..DeviceOptions::default() });
    let golden = golden("opt-bin");
    let params = SamplingParams { max_tokens: 40, ignore_eos: true, ..SamplingParams::default() };
    let prompts: Vec<_> = golden.prompts.iter().map(|p| Prompt::Tokens(p.ids.clone())).collect();
    for cuda_graphs in [true, false] {
        let divided = Options { tensor_parallel_size: 2, dtype: Some(DType::F16), cuda_graphs, ..options() };
        let done = load(&divided).unwrap().generate(&prompts, &params).unwrap();
        for ((p, record), done) in golden.prompts.iter().zip(&golden.half.float16.prompts).zip(done) {
            let enough = record.greedy_prefix_equal;
            assert_eq!(done.outputs[0].tokens[..enough], p.greedy.ids[..enough], "{}", p.name);
        }
    }
}

#[test]
fn a_failed_step_is_an_error_that_names_the_kernel() {
    let _alone = emulator(DeviceOptions::default());
    let mut llm = load(&options()).unwrap();
    let prompt = Prompt::Tokens(vec![5, 6, 7]);
    llm.generate(std::slice::from_ref(&prompt), &SamplingParams { max_tokens: 2, ..SamplingParams::default() })
        .unwrap();
    // To the driver, this kernel never ends.
    set_launch_options(LaunchOptions { instruction_limit: 10, ..LaunchOptions::default() }).unwrap();
    llm.add(&prompt, SamplingParams::default()).unwrap();
    let error = llm.step().unwrap_err();
    assert!(matches!(error, Error::Gpu(_)), "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("in kernel `"), "{cause}");
    // Its requests are lost. The device is lost too, so later requests get an error and do not hang.
    assert!(!llm.has_work());
    llm.add(&prompt, SamplingParams::default()).unwrap();
    assert!(matches!(llm.step(), Err(Error::Gpu(_))));
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
}
