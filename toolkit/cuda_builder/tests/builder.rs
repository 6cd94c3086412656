//! The builder on a small crate of its own: when prebuilt PTX serves, when it does not, and what is said then.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use cuda_builder::{Arch, CudaBuilder, Error, Origin, Source, Toolchain};
use tempfile::TempDir;

const MANIFEST: &str = "[package]\nname = \"tiny\"\nedition = \"2024\"\n[dependencies]\nhelp = { path = \"help\" }\n\
                        [features]\nmore = []\n[workspace]\n";

/// A crate of kernels with a dependency, as sources; nothing compiles it.
fn tiny() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "Cargo.toml", MANIFEST);
    write(dir.path(), "src/lib.rs", "#![no_std]\nmod inner;\n");
    write(dir.path(), "src/inner.rs", "// kernels\n");
    write(dir.path(), "help/Cargo.toml", "[package]\nname = \"help\"\n");
    write(dir.path(), "help/src/lib.rs", "#![no_std]\n");
    dir
}

fn write(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A build on a machine that has no compiler for kernels.
fn bare(dir: &Path) -> CudaBuilder {
    CudaBuilder::new(dir).arch(Arch::Sm80).source(Source::Auto).toolchain(None)
}

/// Puts PTX of the present sources into `prebuilt/`.
fn prebuild(dir: &Path) {
    let hash = cuda_builder::input_hash(dir, Arch::Sm80, &[]).unwrap();
    write(dir, "prebuilt/sm_80.ptx", &format!("// remark\n//@inputs {hash}\n//@compiler any\n.version 7.0\n"));
}

#[test]
fn prebuilt_ptx_of_these_sources_serves() {
    let dir = tiny();
    prebuild(dir.path());
    let copy = dir.path().join("copy.ptx");
    let built = bare(dir.path()).copy_to(&copy).build().unwrap();
    assert_eq!(built.origin, Origin::Prebuilt(dir.path().join("prebuilt/sm_80.ptx")));
    assert_eq!(fs::read_to_string(copy).unwrap(), built.ptx);
}

#[test]
fn changed_sources_and_no_compiler_is_an_error_that_says_what_to_install() {
    for (file, text) in [
        ("src/inner.rs", "// other kernels\n"),
        ("src/new.rs", ""),
        ("help/src/lib.rs", "#![no_std]\n//\n"),
        ("Cargo.toml", &(MANIFEST.to_owned() + "#\n")),
    ] {
        let dir = tiny();
        prebuild(dir.path());
        bare(dir.path()).build().unwrap();
        write(dir.path(), file, text);
        let error = bare(dir.path()).build().unwrap_err();
        assert!(matches!(error, Error::NoToolchain { .. }), "{file}: {error:?}");
        let message = error.to_string();
        for part in ["sm_80.ptx", "rustup component add rust-src", "rustc-web rust-web-src", "QUIRE_DEVICE_RUSTC"] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
        assert!(!message.contains('\n'), "one sentence: {message}");
    }
}

#[test]
fn what_is_not_compiled_does_not_count() {
    let dir = tiny();
    prebuild(dir.path());
    write(dir.path(), "tests/a.rs", "");
    write(dir.path(), "README.md", "");
    write(dir.path(), "src/inner.rs", "// kernels\r\n");
    bare(dir.path()).build().unwrap();
}

#[test]
fn each_architecture_and_feature_has_ptx_of_its_own() {
    let dir = tiny();
    prebuild(dir.path());
    assert!(bare(dir.path()).arch(Arch::Sm90a).build().is_err());
    let more = bare(dir.path()).feature("more");
    assert_eq!(more.prebuilt_path(), dir.path().join("prebuilt/more.sm_80.ptx"));
    fs::copy(dir.path().join("prebuilt/sm_80.ptx"), more.prebuilt_path()).unwrap();
    assert!(more.build().is_err(), "the feature is part of the hash");
}

#[test]
fn a_build_asked_for_does_not_fall_back() {
    let dir = tiny();
    prebuild(dir.path());
    let error = bare(dir.path()).source(Source::Build).build().unwrap_err();
    assert!(matches!(error, Error::NoToolchain { .. }), "{error:?}");
    write(dir.path(), "src/inner.rs", "");
    let error = bare(dir.path()).source(Source::Prebuilt).build().unwrap_err();
    assert!(matches!(error, Error::Stale { .. }), "{error:?}");
}

#[test]
fn errors_in_kernels_are_cargos_own() {
    let Some(toolchain) = Toolchain::find().unwrap() else {
        eprintln!("skipped: there is no compiler for kernels here");
        return;
    };
    let dir = tiny();
    write(dir.path(), "src/lib.rs", "#![no_std]\nthis is no Rust\n");
    // `core` is compiled once for all runs.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("device");
    let build = bare(dir.path()).toolchain(Some(toolchain)).source(Source::Build).target_dir(target);
    assert!(matches!(build.build().unwrap_err(), Error::Failed(_)));
}
