//! Compiles kernels and runs them in the emulator. Skipped on machines without a compiler for kernels.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cuda_builder::{Arch, CudaBuilder, Error, Source, Toolchain};
use emulator::{Arg, EmulatedDevice, Fault, FaultKind, PtxModule};

const KERNELS: &str = include_str!("kernels/lib.rs");

/// A workspace of a crate of kernels and of one that does not compile. `core` is compiled once for both and for all runs, as
/// they are always in the same place and depend on the same crates.
fn workspace() -> &'static Path {
    static WORKSPACE: OnceLock<PathBuf> = OnceLock::new();
    WORKSPACE.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        let cuda_std = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda_std");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = [\"sound\", \"broken\"]\n")
            .unwrap();
        for (name, source) in [("sound", KERNELS), ("broken", "#![no_std]\nthis is no Rust\n")] {
            let member = dir.join(name);
            fs::create_dir_all(member.join("src")).unwrap();
            let manifest = format!(
                "[package]\nname = \"{name}\"\nedition = \"2024\"\n[dependencies]\n\
                 cuda_std = {{ package = \"quire-cuda-std\", path = {cuda_std:?} }}\n"
            );
            fs::write(member.join("Cargo.toml"), manifest).unwrap();
            fs::write(member.join("src/lib.rs"), source).unwrap();
        }
        dir
    })
}

/// The PTX of a member of the workspace. `None` on machines without a compiler for kernels.
fn build(member: &str) -> Option<Result<String, Error>> {
    let Some(toolchain) = Toolchain::find().unwrap() else {
        eprintln!("skipped: there is no compiler for kernels here");
        return None;
    };
    let dir = workspace();
    let builder = CudaBuilder::new(dir.join(member)).arch(Arch::Sm80).source(Source::Build).toolchain(Some(toolchain));
    Some(builder.target_dir(dir.join("device")).build().map(|built| built.ptx))
}

/// The kernels of the tests, compiled once.
fn module() -> Option<&'static PtxModule> {
    static MODULE: OnceLock<Option<PtxModule>> = OnceLock::new();
    MODULE.get_or_init(|| build("sound").map(|ptx| PtxModule::parse(&ptx.unwrap()).unwrap())).as_ref()
}

/// Launches a kernel with one warp on these numbers, in place, and returns them.
fn run<const N: usize>(kernel: &str, data: &[[u8; N]], more: &[Arg]) -> Option<Result<Vec<[u8; N]>, Box<Fault>>> {
    let module = module()?;
    let mut device = EmulatedDevice::new();
    let x = device.alloc_from("x", data.as_flattened());
    let args = [&[Arg::Ptr(x)], more].concat();
    let launched = device.launch(module, kernel, [1; 3], [32, 1, 1], 0, &args);
    Some(launched.map(|_| device.read(x, 32 * N).unwrap().as_chunks().0.to_vec()))
}

#[test]
fn errors_in_kernels_are_cargos_own() {
    let Some(built) = build("broken") else { return };
    assert!(matches!(built.unwrap_err(), Error::Failed(_)));
}

#[test]
fn a_panic_names_its_own_line() {
    let data: Vec<[u8; 4]> = (0..32u32).map(|i| (i % 7).to_le_bytes()).collect();
    for (how, (mark, thread)) in [("unwrap", 9), ("index", 4), ("division", 0), ("assert", 5)].into_iter().enumerate() {
        let Some(result) = run("panics", &data, &[Arg::U32(how as u32)]) else { return };
        let fault = result.unwrap_err();
        assert_eq!((fault.kind, fault.thread), (FaultKind::Assertion, Some([thread, 0, 0])), "{fault}");
        let (file, line) = fault.source.clone().unwrap();
        let text = KERNELS.lines().nth(line as usize - 1).unwrap();
        assert!(file.ends_with("sound/src/lib.rs") && text.ends_with(&format!("// {mark}")), "{fault}: {text}");
        assert!(fault.to_string().contains("a Rust panic"), "{fault}");
    }
}

#[test]
fn doubles_are_computed_as_on_the_host() {
    let data: Vec<[u8; 8]> = (1..33u32).map(|i| (f64::from(i) / 3.0).to_le_bytes()).collect();
    let by = 1.1f64;
    let Some(result) = run("doubles", &data, &[Arg::U64(by.to_bits())]) else { return };
    let expected: Vec<f64> =
        data.iter().map(|&x| f64::from_le_bytes(x)).map(|x| (x * by + 1.0 / x - by).abs()).collect();
    let found: Vec<f64> = result.unwrap().into_iter().map(f64::from_le_bytes).collect();
    assert_eq!(found, expected);
}

#[test]
fn recursion_works_until_the_stack_is_full() {
    fn nested(n: u64) -> u64 {
        if n < 2 { 1 } else { nested(n - 1).wrapping_mul(n) ^ nested(n / 2) }
    }
    let data: Vec<[u8; 8]> = (0..32u64).map(u64::to_le_bytes).collect();
    let Some(result) = run("recursive", &data, &[]) else { return };
    let found: Vec<u64> = result.unwrap().into_iter().map(u64::from_le_bytes).collect();
    assert_eq!(found, (0..32).map(nested).collect::<Vec<_>>());
    let deep = [u64::MAX.to_le_bytes(); 32];
    let fault = run("recursive", &deep, &[]).unwrap().unwrap_err();
    assert!(fault.to_string().contains("recursion without an end?"), "{fault}");
}

#[test]
fn a_warp_adds_numbers_of_every_type() {
    let Some(module) = module() else { return };
    let numbers: Vec<u32> = (0..32).map(|i| 1_000 + 7 * i).collect();
    let mut device = EmulatedDevice::new();
    let x = device.alloc_from("x", numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>().as_slice());
    let sums = device.alloc_named("sums", 64);
    device.launch(module, "sums", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(x), Arg::Ptr(sums)]).unwrap();
    let found: Vec<u64> = device.read(sums, 64).unwrap().as_chunks().0.iter().map(|&x| u64::from_le_bytes(x)).collect();
    let sum: u64 = numbers.iter().map(|&x| u64::from(x)).sum();
    assert_eq!(found, [sum, sum, sum << 32, sum.wrapping_neg(), sum, 1_000, 1_217, 1_217]);
}
