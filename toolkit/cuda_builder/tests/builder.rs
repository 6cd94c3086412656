//! The builder on a small crate: when it uses prebuilt PTX, when it does not, and the errors it returns.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use cuda_builder::{Arch, CudaBuilder, Error, Origin, Source};
use tempfile::TempDir;

const MANIFEST: &str = "[package]\nname = \"tiny\"\nedition = \"2024\"\n[dependencies]\nhelp = { path = \"help\" }\n\
                        [features]\nmore = []\n[workspace]\n";

/// A kernel crate with one dependency, as sources that are never compiled.
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

/// The same crate with a dependency from a registry. The registry is a local directory, so tests download nothing.
fn with_registry(version: &str) -> TempDir {
    let dir = tiny();
    let dependency = format!("far = \"{version}\"\n[features]");
    write(dir.path(), "Cargo.toml", &MANIFEST.replace("[features]", &dependency));
    let config = "[source.crates-io]\nreplace-with = \"near\"\n[source.near]\ndirectory = \"registry\"\n";
    write(dir.path(), ".cargo/config.toml", config);
    for version in ["1.0.0", "2.0.0"] {
        let far = format!("registry/far-{version}");
        write(
            dir.path(),
            &format!("{far}/Cargo.toml"),
            &format!("[package]\nname = \"far\"\nversion = \"{version}\"\n"),
        );
        write(dir.path(), &format!("{far}/src/lib.rs"), "#![no_std]\n");
        write(dir.path(), &format!("{far}/.cargo-checksum.json"), "{\"files\": {}}");
    }
    dir
}

/// A build on a machine without a compiler for kernels.
fn bare(dir: &Path) -> CudaBuilder {
    CudaBuilder::new(dir).arch(Arch::Sm80).source(Source::Auto).toolchain(None)
}

/// Writes PTX with the hash of the current sources to `prebuilt/`.
fn prebuild(dir: &Path) {
    let hash = cuda_builder::input_hash(dir, Arch::Sm80, &[]).unwrap();
    write(dir, "prebuilt/sm_80.inputs", &format!("inputs {hash}\ncompiler any\n"));
    write(dir, "prebuilt/sm_80.ptx", "// remark\n.version 7.0\n");
}

#[test]
fn prebuilt_ptx_of_these_sources_is_used() {
    let dir = tiny();
    prebuild(dir.path());
    let copy = dir.path().join("copy.ptx");
    let built = bare(dir.path()).copy_to(&copy).build().unwrap();
    assert_eq!(built.origin, Origin::Prebuilt(dir.path().join("prebuilt/sm_80.ptx")));
    assert_eq!(fs::read_to_string(copy).unwrap(), built.ptx);
}

#[test]
fn changed_sources_without_a_compiler_are_an_error_that_says_what_to_install() {
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
fn files_that_are_not_compiled_do_not_change_the_hash() {
    let dir = tiny();
    prebuild(dir.path());
    write(dir.path(), "tests/a.rs", "");
    write(dir.path(), "README.md", "");
    write(dir.path(), "src/inner.rs", "// kernels\r\n");
    bare(dir.path()).build().unwrap();
}

#[test]
fn registry_crates_are_hashed_by_version() {
    let hash = |dir: &TempDir| cuda_builder::input_hash(dir.path(), Arch::Sm80, &[]).unwrap();
    let dir = with_registry("1");
    prebuild(dir.path());
    write(dir.path(), "registry/far-1.0.0/README.md", "");
    bare(dir.path()).build().unwrap();
    assert_eq!(hash(&dir), hash(&with_registry("1")), "the location does not matter");
    write(dir.path(), "Cargo.lock", "");
    write(dir.path(), "Cargo.toml", &fs::read_to_string(with_registry("2").path().join("Cargo.toml")).unwrap());
    assert!(bare(dir.path()).build().is_err(), "another version is another input");
}

#[test]
fn patched_registry_crates_are_hashed_by_their_sources() {
    let dir = with_registry("1");
    let manifest = fs::read_to_string(dir.path().join("Cargo.toml")).unwrap();
    write(dir.path(), "Cargo.toml", &(manifest + "[patch.crates-io]\nfar = { path = \"mine\" }\n"));
    write(dir.path(), "mine/Cargo.toml", "[package]\nname = \"far\"\nversion = \"1.0.1\"\n");
    write(dir.path(), "mine/src/lib.rs", "#![no_std]\n");
    prebuild(dir.path());
    bare(dir.path()).build().unwrap();
    write(dir.path(), "mine/src/lib.rs", "#![no_std]\n//\n");
    assert!(bare(dir.path()).build().is_err());
}

#[test]
fn unresolved_dependencies_are_an_error_in_one_sentence() {
    let dir = with_registry("3");
    let error = bare(dir.path()).build().unwrap_err();
    assert!(matches!(error, Error::Unresolved { .. }), "{error:?}");
    assert!(error.to_string().contains("far") && !error.to_string().contains('\n'), "{error}");
}

#[test]
fn each_architecture_and_feature_has_its_own_ptx() {
    let dir = tiny();
    prebuild(dir.path());
    assert!(bare(dir.path()).arch(Arch::Sm90a).build().is_err());
    let more = bare(dir.path()).feature("more");
    assert_eq!(more.prebuilt_path(), dir.path().join("prebuilt/more.sm_80.ptx"));
    for name in ["ptx", "inputs"] {
        let prebuilt = dir.path().join("prebuilt");
        fs::copy(prebuilt.join(format!("sm_80.{name}")), prebuilt.join(format!("more.sm_80.{name}"))).unwrap();
    }
    assert!(more.build().is_err(), "the feature is part of the hash");
}

#[test]
fn an_explicit_source_never_falls_back_to_another() {
    let dir = tiny();
    prebuild(dir.path());
    let error = bare(dir.path()).source(Source::Build).build().unwrap_err();
    assert!(matches!(error, Error::NoToolchain { .. }), "{error:?}");
    write(dir.path(), "src/inner.rs", "");
    let error = bare(dir.path()).source(Source::Prebuilt).build().unwrap_err();
    assert!(matches!(error, Error::Stale { .. }), "{error:?}");
}

#[test]
fn without_prebuilt_ptx_only_the_compiler_is_missing() {
    let dir = tiny();
    let error = bare(dir.path()).build().unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("no compiler for kernels was found: ") && message.contains("rust-src"), "{message}");
    assert_eq!(format!("{error:?}"), message, "what `unwrap` prints");
}

/// A rustc that knows its sysroot and its version.
#[cfg(unix)]
fn rustc(sysroot: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = sysroot.join("rustc");
    let script = format!("#!/bin/sh\n[ \"$1\" = --version ] && echo rustc 9.9.9 || echo '{}'\n", sysroot.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
#[cfg(unix)]
fn the_template_checks_for_the_sources_before_it_builds() {
    let sysroot = tempfile::tempdir().unwrap();
    let check = || {
        let mut command = std::process::Command::new("../template/check");
        let output = command.env("QUIRE_DEVICE_RUSTC", rustc(sysroot.path())).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (ready, _, error) = check();
    assert!(!ready && error.contains("rust-src") && error.contains("rustup component add rust-src"), "{error}");
    write(sysroot.path(), "lib/rustlib/src/rust/library/core/src/lib.rs", "");
    let (ready, said, error) = check();
    assert!(ready && said.contains("rustc 9.9.9"), "{said}{error}");
}

#[test]
fn the_template_is_optimised_as_this_repository() {
    let profile = |manifest: &str, package: &str| {
        let text = fs::read_to_string(manifest).unwrap();
        let header = format!("[profile.dev.package.{package}]");
        let lines = text.lines().skip_while(|line| *line != header).skip(1);
        lines.take_while(|line| line.contains('=')).map(str::to_owned).collect::<Vec<_>>()
    };
    for (package, level) in [("quire-emulator", 2), ("quire-launch", 2), ("half", 3)] {
        let own = profile("../../Cargo.toml", package);
        assert_eq!(profile("../template/Cargo.toml", package), own, "{package}");
        assert!(own.contains(&format!("opt-level = {level}")), "{package}: {own:?}");
    }
}
