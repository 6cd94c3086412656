//! The PTX in `prebuilt/` against what the crate declares. Needs no compiler for kernels, and no GPU.

#![allow(clippy::unwrap_used)]

use cuda_builder::ptx::{PtxEntry, entries};
use cuda_builder::{Arch, CudaBuilder, Origin, Source};
use cuda_std::launch::Descriptor;
use kernels::registry::shipped;

fn prebuilt(arch: Arch) -> String {
    get(CudaBuilder::new(env!("CARGO_MANIFEST_DIR")).arch(arch))
}

fn intrinsics(arch: Arch) -> String {
    get(CudaBuilder::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../toolkit/intrinsics")).arch(arch))
}

fn get(builder: CudaBuilder) -> String {
    // If sources have changed, the error says so. `cargo run -p quire-cuda-builder` rebuilds the PTX.
    let path = builder.prebuilt_path();
    let built = builder.source(Source::Prebuilt).build().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(built.origin, Origin::Prebuilt(path));
    built.ptx
}

/// Returns the entry that a descriptor declares.
fn promised(kernel: &Descriptor) -> PtxEntry {
    let ty = |ty: &str, size: usize| match ty {
        "f32" | "f64" => format!("f{}", size * 8),
        _ => format!("u{}", size * 8),
    };
    PtxEntry {
        name: kernel.name.into(),
        params: kernel.params.iter().map(|p| ty(p.ty, p.size)).collect(),
        max_threads: kernel.bounds.max_threads,
        min_blocks: kernel.bounds.min_blocks,
        max_regs: kernel.bounds.max_regs,
    }
}

/// LLVM's versions name types of bits differently. `.b32`, `.u32` and `.f32` are passed in the same way.
fn by_size(mut entry: PtxEntry) -> PtxEntry {
    entry.params.iter_mut().for_each(|ty| *ty = ty.trim_start_matches(|c: char| c.is_alphabetic()).to_owned());
    entry
}

fn assert_entries<'a>(arch: Arch, ptx: &str, kernels: impl Iterator<Item = &'a Descriptor>) {
    let here_too = kernels.filter(|kernel| kernel.is_for(arch.name()));
    let mut expected: Vec<_> = here_too.map(promised).map(by_size).collect();
    expected.sort_by(|a, b| a.name.cmp(&b.name));
    let mut found: Vec<_> = entries(ptx).unwrap().into_iter().map(by_size).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(found, expected);
}

#[test]
fn the_entries_match_the_declarations() {
    for arch in Arch::ALL {
        assert_entries(arch, &prebuilt(arch), shipped());
        assert_entries(arch, &intrinsics(arch), intrinsics::all());
    }
}

#[test]
fn the_ptx_has_the_lowest_sufficient_version() {
    assert!(prebuilt(Arch::Sm80).contains("\n.version 7.0\n.target sm_80\n"));
    assert!(prebuilt(Arch::Sm90a).contains("\n.version 8.0\n.target sm_90a\n"));
}

#[test]
fn the_ptx_names_source_lines_but_no_machine_paths() {
    for arch in Arch::ALL {
        let ptx = prebuilt(arch);
        assert!(ptx.lines().any(|l| l.trim_start().starts_with(".file") && l.contains("kernels/src/cache.rs")));
        for line in ptx.lines().filter(|l| l.trim_start().starts_with(".file")) {
            let path = line.split('"').nth(1).unwrap();
            assert!(path.starts_with("./") || path.starts_with("/rustc/"), "{path}");
        }
    }
}

#[test]
fn no_kernel_can_panic_or_needs_local_memory() {
    for arch in Arch::ALL {
        let ptx = prebuilt(arch);
        for word in [".local", "panic", "trap;", "call"] {
            let code = ptx.lines().filter(|l| !l.trim_start().starts_with("//"));
            assert_eq!(code.filter(|l| l.contains(word)).count(), 0, "{word} in the PTX for {arch}");
        }
    }
}
