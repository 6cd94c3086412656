//! A fault on the device ends its context, and the error describes it.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::device::add;
use common::{context, module};
use cuda_std::launch::{DevicePtrMut, LaunchShape};
use emulator::LaunchOptions;
use emulator::driver;
use launch::{DeviceBuffer, PinnedBuffer};

#[test]
fn a_fault_is_described_and_persists() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32; 4]).unwrap().named("numbers");
    // A GPU only notices accesses far outside of all buffers.
    let pointer = if context.is_emulator() { x.as_mut_ptr() } else { DevicePtrMut::from_address(4096) };
    // SAFETY: there are only four elements. The out-of-bounds access is intended and harms nothing.
    unsafe { module.launch(&stream, LaunchShape::linear(1, 32), add { x: pointer, by: 1, n: 5 }) }.unwrap();
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    if context.is_emulator() {
        assert!(error.contains("kernel `add`") && error.contains("thread [4, 0, 0]"), "{error}");
        assert!(error.contains("4 bytes at offset 16 of `numbers`, which has 16 bytes"), "{error}");
    }
    for error in [context.synchronize(), stream.clear(&x), DeviceBuffer::<u8>::uninit(&context, 1).map(|_| ())] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        assert_eq!(error.contains("`numbers`"), context.is_emulator(), "{error}");
    }

    let fresh = common::context().stream().unwrap();
    let y = DeviceBuffer::from_slice(&fresh, &[5u32]).unwrap();
    assert_eq!(y.to_vec(&fresh).unwrap(), [5], "the fault is its context's alone");
}

#[test]
fn the_emulator_reports_reads_of_uninitialised_memory() {
    let context = context();
    if !context.is_emulator() {
        return;
    }
    let stream = context.stream().unwrap();
    let x = DeviceBuffer::<u32>::uninit(&context, 4).unwrap().named("empty");
    context.make_current().unwrap();
    driver::set_launch_options(LaunchOptions { check_initialised: false, ..LaunchOptions::default() }).unwrap();
    assert_eq!(x.to_vec(&stream).unwrap(), [0xcdcd_cdcd; 4]);
    driver::set_launch_options(LaunchOptions::default()).unwrap();
    let error = x.to_vec(&stream).unwrap_err().to_string();
    assert!(error.contains("offset 0 of `empty` was never written"), "{error}");
}

#[test]
fn a_copy_beyond_a_buffer_is_refused() {
    use launch::cust::sys;
    let context = context();
    let stream = context.stream().unwrap();
    let x = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    let from = PinnedBuffer::from_slice(&context, &[1u32; 1 << 20]).unwrap();
    context.make_current().unwrap();
    // SAFETY: the driver refuses the copy.
    let code = unsafe { sys::cuMemcpyHtoD_v2(x.address(), from.as_ptr().cast(), 4 << 20) };
    assert_eq!(code, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(x.to_vec(&stream).unwrap(), [1], "and has no other consequence");
}

#[test]
fn launches_are_reported() {
    let context = context();
    if !context.is_emulator() {
        return;
    }
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32; 64]).unwrap();
    context.make_current().unwrap();
    driver::collect_reports(true).unwrap();
    // SAFETY: the buffer has 64 elements.
    unsafe { module.launch(&stream, LaunchShape::linear(1, 64), add { x: x.as_mut_ptr(), by: 1, n: 64 }) }.unwrap();
    assert_eq!(driver::take_reports().unwrap(), [], "nobody waited");
    stream.synchronize().unwrap();
    let reports = driver::take_reports().unwrap();
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    assert_eq!((report.kernel.as_str(), report.grid, report.block), ("add", [1, 1, 1], [64, 1, 1]));
    assert_eq!(report.report.total.sectors, 16, "64 numbers read and written");
    driver::collect_reports(false).unwrap();
    assert_eq!(driver::take_reports().unwrap(), []);
}
