//! `ptxas` accepts the PTX, needs no local memory but for the kernels named below, and moves no memory access ahead of the
//! wait for earlier launches. The tests also record the loops on the tensor cores that it generates.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_builder::{Arch, CudaBuilder};
use cuda_std::launch::Descriptor;
use frame::sass::MatrixLoop;
use kernels::registry::shipped;

/// The output of `ptxas -v` for one kernel.
#[derive(Debug, Default)]
struct Usage {
    name: String,
    properties: String,
    /// Registers of a thread.
    registers: u32,
    /// Bytes of static shared memory of a block.
    shared: u32,
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
                Some((_, used)) => {
                    let number = |part: &str| part.split_whitespace().next().and_then(|n| n.parse().ok());
                    let find = |what| used.split(", ").find(|part| part.contains(what)).and_then(number);
                    usage.registers = find("registers").unwrap_or_default();
                    usage.shared = find("bytes smem").unwrap_or_default();
                }
                None if line.contains("stack frame") => usage.properties = line.trim().to_owned(),
                None => {}
            }
        }
    }
    usages
}

/// Returns the first line of a record, which names the version of ptxas.
fn version(ptxas: &OsString) -> String {
    let output = Command::new(ptxas).arg("--version").output().expect("ptxas starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.split_once("release ").map(|(_, version)| version.to_owned()));
    format!("# ptxas {}\n", version.unwrap())
}

/// Kernels that keep some numbers in local memory, with the most bytes of a thread. A delta net's pass has 64 numbers of the
/// state, 32 results and 32 added values at once, and ptxas does not fit the rest into 255 registers. What it moves is
/// loaded once for a tile of 64 tokens, which takes 504 `mma`.
const SPILLED: [(&str, u32); 2] = [("pass_chunks_f16_1", 48), ("pass_chunks_bf16_1", 40)];

impl Usage {
    /// Returns the bytes of a thread in local memory.
    fn spilled(&self) -> u32 {
        let bytes = self.properties.split(" bytes").next().and_then(|bytes| bytes.trim().parse().ok());
        bytes.unwrap_or_else(|| panic!("ptxas reports no stack frame: {}", self.properties))
    }
}

#[test]
fn kernels_do_not_spill() {
    let Some(ptxas) = frame::ptxas::find() else { return };
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let nvdisasm = frame::sass::find();
    let mut record =
        version(&ptxas) + "# target, kernel, registers of a thread, bytes of static shared memory of a block\n";
    let mut loops =
        version(&ptxas) + "# target, kernel, instructions of the loop, how many are the tensor cores', their name\n";
    for arch in Arch::ALL {
        let here_too = |kernel: &&Descriptor| kernel.is_for(arch.name());
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (crate_dir, kernels) in [
            (here.join("../toolkit/intrinsics"), intrinsics::all().filter(here_too).count()),
            (here.to_owned(), shipped().filter(here_too).count()),
        ] {
            let ptx = scratch.join(arch.name()).with_extension("ptx");
            let builder = CudaBuilder::new(crate_dir).arch(arch).target_dir(scratch.join("device"));
            builder.copy_to(&ptx).build().unwrap_or_else(|error| panic!("{error}"));
            let usages = compile(&ptxas, &ptx, arch);
            assert_eq!(usages.len(), kernels, "{usages:?}");
            for usage in &usages {
                let allowed = SPILLED.iter().find(|(name, _)| *name == usage.name).map_or(0, |(_, bytes)| *bytes);
                assert!(usage.spilled() <= allowed, "{} on {arch}: {}", usage.name, usage.properties);
            }
            if let Some(tool) = &nvdisasm {
                let text = frame::sass::disassembly(tool, &ptx.with_extension("cubin"));
                for MatrixLoop { kernel, instructions, matrix, name, .. } in frame::sass::matrix_loops(&text) {
                    loops += &format!("{arch}\t{kernel}\t{instructions}\t{matrix}\t{name}\n");
                }
                let waits = |name: &str| shipped().any(|kernel| kernel.name == name && kernel.waits_in(arch.name()));
                for (kernel, access) in frame::sass::early_accesses(&text).into_iter().filter(|found| waits(found.0)) {
                    let is_weight = kernel.starts_with("gemm_hopper") && access == "UTMALDG"
                        || kernel.starts_with("gemv") && access == "LDGSTS";
                    assert!(is_weight, "{kernel}: {access} ahead of the wait for earlier launches");
                }
            }
            for kernel in shipped().filter(here_too) {
                if let Some(Usage { name, registers, shared, .. }) =
                    usages.iter().find(|usage| usage.name == kernel.name)
                {
                    record += &format!("{arch}\t{name}\t{registers}\t{shared}\n");
                }
            }
        }
    }
    assert_recorded("resources.tsv", &record);
    if nvdisasm.is_some() {
        assert_recorded("loops.tsv", &loops);
    }
}

/// Compares the loops of other projects' kernels with the record, and prints the loops of all object files in the
/// folder.
#[test]
#[ignore = "needs kernels of other projects, which toolkit/emulator/tests/foreign/counted/build.sh makes"]
fn loops_of_other_projects() {
    let folder = std::env::var_os("QUIRE_CUBINS").expect("QUIRE_CUBINS must name the folder of the object files");
    let ptxas = frame::ptxas::find().expect("ptxas was not found");
    let nvdisasm = frame::sass::find().expect("nvdisasm was not found");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../toolkit/emulator/tests/foreign/counted/loops.tsv");
    let recorded = std::fs::read_to_string(&path).unwrap();
    let mut record = version(&ptxas);
    let is_comparable = recorded.starts_with(&record);
    record += "# file, kernel where it is one of several, instructions of the loop, how many are products, their name, how many \
               are copies, instructions of the shortest way through it that has all of these\n";
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "cubin"));
    files.sort();
    assert!(!files.is_empty(), "the folder has no object files");
    for file in &files {
        let stem = file.file_stem().unwrap().to_string_lossy();
        for found in frame::sass::product_loops(&frame::sass::disassembly(&nvdisasm, file)) {
            // Projects that mangle names have one kernel in each file.
            let kernel = if found.kernel.starts_with("_Z") { "-" } else { &found.kernel };
            let MatrixLoop { instructions, matrix, name, copies, least, .. } = found;
            let row = format!("{stem}\t{kernel}\t{instructions}\t{matrix}\t{name}\t{copies}\t{least}\n");
            print!("{row}");
            let is_recorded = is_comparable && recorded.contains(&format!("\n{stem}\t{kernel}\t"));
            assert!(!is_recorded || recorded.contains(&format!("\n{row}")), "differs from the record: {row}");
            record += &row;
        }
    }
    if std::env::var_os("QUIRE_RECORD").is_some() {
        std::fs::write(&path, record).unwrap();
    }
}

/// Compares the registers of every kernel and its loop on the tensor cores with the record, which is for readers
/// without ptxas. With `QUIRE_RECORD=1`, writes the record first.
fn assert_recorded(file: &str, record: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("prebuilt").join(file);
    if std::env::var_os("QUIRE_RECORD").is_some() {
        std::fs::write(&path, record).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    // Another version of ptxas may allocate registers differently.
    if recorded.lines().next() == record.lines().next() {
        assert_eq!(recorded, record, "QUIRE_RECORD=1 makes this test update the record");
    }
}
