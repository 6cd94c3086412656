//! Conformance of every instruction form that the kernels use, and of common forms that they do not use yet. Each form
//! runs in a small kernel of its own, on corner cases and random operands, and is compared with plain Rust.
//!
//! A [`case::Case`] is an instruction in PTX and a reference. The kernels are text, so the same kernels also run on a
//! GPU. `hardware/` has the results of GPUs. The emulator must match them bit for bit, except where hardware
//! approximates. `QUIRE_CONFORMANCE_RECORD=<file>` makes the test `recording` write such a file for the machine on
//! which the tests run.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod approximate;
mod atomic;
mod bits;
mod case;
mod collective;
mod compare;
mod control;
mod convert;
mod exact;
mod float;
mod form;
#[path = "../frame/mod.rs"]
mod frame;
mod hardware;
mod integer;
mod machine;
mod memory;
mod tensor;
mod types;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use case::Case;
use hardware::Record;
use machine::Machine;

/// Runs all cases of a family, and prints the first wrong thread's operands for each case that fails.
#[track_caller]
fn check(cases: Vec<Case>) {
    let machine = Machine::load(&cases);
    let mut failures = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let operands = case.operands();
        let found = machine.run(index, case, &operands);
        let expected = case.expected(&operands);
        let mut wrong = found.iter().zip(&expected).enumerate().filter(|(_, (found, expected))| {
            found.iter().zip(*expected).any(|(found, expected)| !expected.holds(*found))
        });
        if let Some((thread, (found, expected))) = wrong.next() {
            failures.push(format!(
                "{}: thread {thread} and {} more: from {:#x?} got {found:#x?}, not {expected:#x?}",
                case.line,
                wrong.count(),
                operands[thread]
            ));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn integers() {
    check(integer::cases());
}

#[test]
fn bits_and_moves() {
    check(bits::cases());
}

#[test]
fn comparisons() {
    check(compare::cases());
}

#[test]
fn floats() {
    check(float::cases());
}

#[test]
fn approximations() {
    check(approximate::cases());
}

#[test]
fn conversions() {
    check(convert::cases());
}

#[test]
fn memory_accesses() {
    check(memory::cases());
}

#[test]
fn atomics() {
    check(atomic::cases());
}

#[test]
fn collectives() {
    check(collective::cases());
}

#[test]
fn tensor_cores() {
    check(tensor::cases());
}

#[test]
fn control_flow() {
    check(control::cases());
}

/// Returns all cases, in a fixed order.
fn all() -> Vec<Case> {
    let families = [
        integer::cases(),
        bits::cases(),
        compare::cases(),
        float::cases(),
        approximate::cases(),
        convert::cases(),
        memory::cases(),
        atomic::cases(),
        collective::cases(),
        tensor::cases(),
        control::cases(),
    ];
    families.into_iter().flatten().collect()
}

/// Forms that work asynchronously, or only together with other instructions and blocks. Whole kernels test them:
/// `toolkit/intrinsics`, with a kernel for each function of `cuda_std`, and the emulator's own tests.
const IN_WHOLE_KERNELS: [&str; 14] = [
    "barrier.cluster.",
    "cp.async.bulk.",
    "cvta.param.",
    "elect.",
    "fence.",
    "griddepcontrol.",
    "ld.shared::cluster.",
    "mapa.",
    "mbarrier.",
    "mov.u32 r %cluster",
    "setmaxnreg.",
    "st.shared::cluster.",
    "stmatrix.",
    "wgmma.",
];

#[test]
fn every_form_in_the_shipped_ptx_has_a_case() {
    let covered: BTreeSet<String> = all().iter().map(Case::form).collect();
    let shipped = [
        include_str!("../../prebuilt/sm_80.ptx"),
        include_str!("../../prebuilt/sm_90a.ptx"),
        intrinsics::SM_80,
        intrinsics::SM_90A,
    ];
    let used: BTreeSet<String> = shipped.into_iter().flat_map(form::forms).collect();
    assert!(used.contains("ret") && used.len() > 80, "the forms were not found: {used:?}");
    let alone = |form: &&String| !IN_WHOLE_KERNELS.iter().any(|prefix| form.starts_with(prefix));
    let missing: Vec<_> = used.difference(&covered).filter(alone).collect();
    assert!(missing.is_empty(), "forms without a case: {missing:#?}");
}

/// Runs all cases and returns their outputs.
fn record(cases: &[Case]) -> Vec<Record> {
    let machine = Machine::load(cases);
    let run = |(index, case): (usize, &Case)| {
        let operands = case.operands();
        Record::new(case, &operands, &machine.run(index, case, &operands))
    };
    cases.iter().enumerate().map(run).collect()
}

/// Compares the outputs of the cases here with another machine's, and describes the differences.
fn compare(cases: &[Case], here: &[Record], there: &[Record]) -> Vec<String> {
    let difference = |record: &Record| match here.iter().position(|own| own.digest == record.digest) {
        None => {
            Some(format!("{}: its kernel or operands have changed since the recording, record it again", record.line))
        }
        Some(index) => match here[index].differences(record, &cases[index]) {
            0 => None,
            count => Some(format!("{}: {count} outputs differ", record.line)),
        },
    };
    there.iter().filter_map(difference).collect()
}

/// Hardware accepts everything that the emulator accepts.
#[test]
fn ptxas_accepts_every_case() {
    let Some(ptxas) = frame::ptxas::find() else { return };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance.ptx");
    fs::write(&path, machine::module(&all())).unwrap();
    let mut command = Command::new(ptxas);
    command.args(["-O0", "-arch", "sm_90", "-o"]).arg(path.with_extension("cubin")).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_emulator_matches_recorded_gpus() {
    let Ok(files) = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/hardware")) else {
        let note = b"\n*** SKIPPED: nothing has been recorded on a GPU yet, so the emulator is compared only with the references. ***\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), note);
        return;
    };
    let cases = all();
    let here = record(&cases);
    for file in files {
        let path = file.unwrap().path();
        let (machine, there) = hardware::read(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_ne!(machine, Machine::NAME, "{} was not recorded on a GPU", path.display());
        let differences = compare(&cases, &here, &there);
        assert!(differences.is_empty(), "{}:\n{}", path.display(), differences.join("\n"));
    }
}

/// Writes the file that `QUIRE_CONFORMANCE_RECORD` names. Without it, only checks that a recording can be read and
/// compared, and that a difference is noticed.
#[test]
fn recording() {
    if let Some(path) = env::var_os("QUIRE_CONFORMANCE_RECORD") {
        fs::write(path, hardware::write(Machine::NAME, &record(&all()))).unwrap();
    }
    let cases: Vec<Case> = [approximate::cases(), tensor::cases()].into_iter().flatten().collect();
    let here = record(&cases);
    let (machine, mut there) = hardware::read(&hardware::write(Machine::NAME, &here)).unwrap();
    assert_eq!((machine.as_str(), &there), (Machine::NAME, &here));
    assert_eq!(compare(&cases, &here, &there), [""; 0]);
    // The last bit may differ only where the hardware approximates.
    let changed: Vec<usize> = ["tanh.approx.f32 %x, %a;", "ldmatrix.sync.aligned.m8n8.x1.b16 {%x}, [%generic];"]
        .map(|line| cases.iter().position(|case| case.line == line).unwrap())
        .to_vec();
    for &index in &changed {
        there[index].outputs[1000] ^= 1;
    }
    assert_eq!(compare(&cases, &here, &there), [format!("{}: 1 outputs differ", cases[changed[1]].line)]);
    there.truncate(1);
    there[0].digest += 1;
    assert_eq!(compare(&cases, &here, &there).len(), 1);
}
