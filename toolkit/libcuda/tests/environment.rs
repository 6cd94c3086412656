//! The effect of environment variables. Each test runs itself again as a child process with the variables set.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[macro_use]
mod common;

use common::*;
use std::process::{Command, Output};

/// The variable that marks the child process.
const CHILD: &str = "LIBCUDA_TEST_CHILD";

/// Whether this process is a child started by [`run`].
fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test of this file as a child process with the given variables.
fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1").envs(variables.iter().copied());
    command.output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a kernel that adds more numbers than the buffers contain.
fn read_too_far() {
    enter(0);
    let (_, add) = load(include_bytes!("compiled/lz4.fatbin"), "add");
    let (a, b) = (upload(&[1.0, 2.0]), upload(&[1.0, 2.0]));
    assert_eq!(launch(add, 32, &[arg(&a), arg(&b), arg(&3i32)]), 0);
    const ILLEGAL_ADDRESS: u32 = 700;
    assert_eq!(call!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
}

#[test]
fn faults_are_reported_and_counted() {
    if is_child() {
        return read_too_far();
    }
    let name = "faults_are_reported_and_counted";
    let plain = run(name, &[]);
    let stderr = errors(&plain);
    assert!(plain.status.success(), "{stderr}");
    assert!(stderr.contains("========= Invalid __global__ read\n=========     at add (PTX line "), "{stderr}");
    assert!(stderr.contains("by thread (2,0,0) in block (0,0,0)"), "{stderr}");
    assert!(stderr.ends_with("========= ERROR SUMMARY: 1 error\n"), "{stderr}");
    assert_eq!(run(name, &[("QUIRE_EMULATOR_EXIT_CODE", "86")]).status.code(), Some(86));

    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let quiet = run(name, &[("QUIRE_EMULATOR_REPORT", report.to_str().unwrap())]);
    assert!(!errors(&quiet).contains("========="));
    assert!(std::fs::read_to_string(report).unwrap().ends_with("ERROR SUMMARY: 1 error\n"));
}

#[test]
fn the_requested_devices_exist() {
    if is_child() {
        enter(1);
        let (mut count, mut major, mut minor) = (0, 0, 0);
        assert_eq!(call!(cuDeviceGetCount(&mut count => &mut i32)), 0);
        assert_eq!(call!(cuDeviceGetAttribute(&mut major => &mut i32, 75 => u32, 1 => i32)), 0);
        assert_eq!(call!(cuDeviceGetAttribute(&mut minor => &mut i32, 76 => u32, 1 => i32)), 0);
        assert_eq!((count, major, minor), (2, 8, 6));
        return assert_copied_between_devices();
    }
    let variables = [("QUIRE_EMULATOR_DEVICES", "2"), ("QUIRE_EMULATOR_DEVICE", "sm_86")];
    let output = run("the_requested_devices_exist", &variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Copies from one device to another, without peer access.
fn assert_copied_between_devices() {
    let first = enter(0);
    let from = upload(&[1.0, 2.0]);
    let second = enter(1);
    let to = upload(&[0.0, 0.0]);
    let code = call!(cuMemcpyPeer(to => u64, second => Handle, from => u64, first => Handle, 8 => usize));
    assert_eq!((code, download(to, 2)), (0, vec![1.0, 2.0]));
}

#[test]
fn an_invalid_value_is_an_error() {
    if is_child() {
        const UNKNOWN: u32 = 999;
        const NOT_INITIALISED: u32 = 3;
        assert_eq!(call!(cuInit(0 => u32)), UNKNOWN);
        assert_eq!(call!(cuDeviceGetCount(&mut 0 => &mut i32)), NOT_INITIALISED);
        return;
    }
    let output = run("an_invalid_value_is_an_error", &[("QUIRE_EMULATOR_DEVICE", "H100")]);
    let stderr = errors(&output);
    assert!(output.status.success(), "{stderr}");
    let wanted = "libcuda of Quire's emulator: QUIRE_EMULATOR_DEVICE=H100 is invalid: the supported devices are sm_80";
    assert!(stderr.starts_with(wanted), "{stderr}");
}

#[test]
fn a_refusal_is_reported() {
    if is_child() {
        enter(0);
        assert_eq!(load(include_bytes!("compiled/sass.fatbin"), "add").0, 209);
        return;
    }
    let stderr = errors(&run("a_refusal_is_reported", &[]));
    let wanted =
        "========= Refused: `load of a module`: the fatbin only holds machine code (SASS), which the emulator does not";
    assert!(stderr.contains(wanted), "{stderr}");
}

#[test]
fn kernels_print_and_assert() {
    if is_child() {
        enter(0);
        let ptx = std::ffi::CString::new(include_str!("compiled/checked.ptx")).unwrap();
        let (code, checked) = load(ptx.as_bytes_with_nul(), "checked");
        assert_eq!(code, 0);
        let mut data = 0u64;
        assert_eq!(call!(cuMemAlloc(&mut data => &mut u64, 8 => usize)), 0);
        assert_eq!(call!(cuMemcpyHtoD(data => u64, [3i32, 14].as_ptr() => *const i32, 8 => usize)), 0);
        assert_eq!(launch(checked, 2, &[arg(&data), arg(&10i32)]), 0);
        const ASSERT: u32 = 710;
        assert_eq!(call!(cuCtxSynchronize()), ASSERT);
        return;
    }
    let output = run("kernels_print_and_assert", &[]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("0: half is   1.50 %\n1: half is   7.00 %\n"), "{printed}");
    let stderr = errors(&output);
    let wanted = "the assertion `data[i] < limit` of `void checked(const int *, int)` does not hold, at checked.cu:7";
    assert!(stderr.contains("========= Device-side assert\n") && stderr.contains(wanted), "{stderr}");
}

#[test]
fn copies_of_uninitialised_memory_are_faults_if_checked() {
    if is_child() {
        enter(0);
        let (mut memory, mut word) = (0u64, 0u32);
        assert_eq!(call!(cuMemAlloc(&mut memory => &mut u64, 4 => usize)), 0);
        let code = call!(cuMemcpyDtoH(&mut word => &mut u32, memory => u64, 4 => usize));
        const LAUNCH_FAILED: u32 = 719;
        let is_checked = std::env::var("QUIRE_EMULATOR_CHECKS").is_ok_and(|checks| checks == "all");
        assert_eq!(code, if is_checked { LAUNCH_FAILED } else { 0 });
        return;
    }
    let name = "copies_of_uninitialised_memory_are_faults_if_checked";
    let quiet = run(name, &[]);
    assert!(quiet.status.success() && errors(&quiet).is_empty(), "{}", errors(&quiet));
    let stderr = errors(&run(name, &[("QUIRE_EMULATOR_CHECKS", "all")]));
    assert!(stderr.starts_with("========= Uninitialized __global__ memory read\n"), "{stderr}");
}
