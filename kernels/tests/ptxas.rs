//! `ptxas` accepts the PTX, and finds no need for spills or local memory.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_builder::{Arch, CudaBuilder};
use kernels::registry::{shipped, vocabulary};

/// What `ptxas -v` says of one kernel.
#[derive(Debug, Default)]
struct Usage {
    name: String,
    properties: String,
    registers: String,
}

fn compile(ptxas: &OsString, ptx: &Path, arch: Arch) -> Vec<Usage> {
    let mut command = Command::new(ptxas);
    command.args(["-v", "--warning-as-error", "-arch", arch.name(), "-o"]);
    let output = command.arg(ptx.with_extension("cubin")).arg(ptx).output().expect("ptxas starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", ptx.display());
    let mut usages: Vec<Usage> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split_once("entry function '").map(|(_, rest)| rest) {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            usages.push(Usage { name, ..Usage::default() });
        } else if let Some(usage) = usages.last_mut() {
            match line.split_once("Used ") {
                Some((_, used)) => usage.registers = used.split(',').next().unwrap_or_default().to_owned(),
                None if line.contains("stack frame") => usage.properties = line.trim().to_owned(),
                None => {}
            }
        }
    }
    usages
}

#[test]
fn no_spills_and_no_local_memory() {
    let Some(ptxas) = frame::ptxas::find() else { return };
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for arch in Arch::ALL {
        let ptx = scratch.join(arch.name()).with_extension("ptx");
        let builder = CudaBuilder::new(env!("CARGO_MANIFEST_DIR")).arch(arch).feature("vocabulary");
        builder.target_dir(scratch.join("device")).copy_to(&ptx).build().unwrap_or_else(|error| panic!("{error}"));
        let usages = compile(&ptxas, &ptx, arch);
        assert_eq!(usages.len(), shipped().chain(vocabulary()).count(), "{usages:?}");
        for Usage { name, properties, registers } in usages {
            println!("{arch} {name}: {registers}");
            assert_eq!(properties, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", "{name}");
        }
    }
}
