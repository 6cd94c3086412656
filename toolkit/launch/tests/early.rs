//! Launches of kernels that wait for earlier launches themselves. They begin early on targets that have the wait
//! instruction, and on no others.
//!
//! These tests use the emulator, because only it finds the faults.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use cuda_std::launch::{Kernel, LaunchShape};
use launch::{Context, DeviceBuffer, Driver, Module, PinnedBuffer, Stream};

mod device {
    #![allow(dead_code, reason = "the tests have PTX of their own")]

    use cuda_std::prelude::*;

    /// Adds one to a number per thread of a warp.
    ///
    /// # Safety
    /// `x` must have 32 elements.
    #[kernel(dependent, max_threads = 32)]
    pub unsafe fn count(x: *mut u32) {
        // SAFETY: `x` has an element for each thread.
        unsafe { *x.add(thread::index_1d() as usize) += 1 };
    }
}
use device::count;

/// PTX for the kernel and a target. `beginning` is inserted at the start of the body.
fn ptx(target: &str, beginning: &str) -> String {
    format!(
        ".version 8.0\n.target {target}\n.address_size 64\n.visible .entry count(.param .u64 x)\n.maxntid 32\n{{\n\
         .reg .b32 %r<3>; .reg .b64 %rd<3>;\n{beginning}\nmov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4;\n\
         ld.param.u64 %rd2, [x]; add.u64 %rd1, %rd1, %rd2; ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1;\n\
         st.global.u32 [%rd1], %r2; ret;\n}}\n"
    )
}

const WAIT: &str = "griddepcontrol.wait; griddepcontrol.launch_dependents;";

/// A stream with 32 zeros, and the kernel.
struct Counter {
    module: Module,
    x: DeviceBuffer<u32>,
    stream: Stream,
    context: Context,
}

impl Counter {
    /// The emulator is configured as a Hopper GPU.
    fn new(ptx: &str) -> Self {
        Self::with(ptx, |module| module)
    }

    fn with(ptx: &str, change: impl FnOnce(Module) -> Module) -> Self {
        let context = Context::new(Driver::emulator().unwrap(), 0).unwrap();
        let stream = context.stream().unwrap();
        let module = change(Module::load(&context, ptx, &[&count::DESCRIPTOR]).unwrap());
        let x = DeviceBuffer::zeroed(&stream, 32).unwrap().named("numbers");
        Self { module, x, stream, context }
    }

    fn launch(&self) -> launch::Result<()> {
        let call = count { x: self.x.as_mut_ptr() };
        // SAFETY: `x` has 32 elements. If the wait is missing, the emulator reports a fault.
        unsafe { self.module.launch(&self.stream, LaunchShape::linear(1, 32), call) }
    }

    fn numbers(&self) -> launch::Result<Vec<u32>> {
        self.x.to_vec(&self.stream)
    }

    #[track_caller]
    fn is_early(&self) {
        let error = self.numbers().unwrap_err().to_string();
        assert!(error.contains("`numbers` in a dependent launch that a launch ahead of it wrote"), "{error}");
    }
}

#[test]
fn a_kernel_that_waits_may_begin_early() {
    let right = Counter::new(&ptx("sm_90a", WAIT));
    (0..3).for_each(|_| right.launch().unwrap());
    assert_eq!(right.numbers().unwrap(), [3; 32]);

    let wrong = Counter::new(&ptx("sm_90a", ""));
    (0..2).for_each(|_| wrong.launch().unwrap());
    wrong.is_early();
}

#[test]
fn ptx_without_the_wait_is_launched_in_order() {
    let older = Counter::new(&ptx("sm_80", ""));
    (0..3).for_each(|_| older.launch().unwrap());
    assert_eq!(older.numbers().unwrap(), [3; 32]);
}

/// The wait then does nothing, and its absence is not a fault.
#[test]
fn a_module_in_order_launches_nothing_early() {
    for beginning in [WAIT, ""] {
        let counter = Counter::with(&ptx("sm_90a", beginning), Module::in_order);
        let graph = counter.stream.capture(|| (0..3).try_for_each(|_| counter.launch())).unwrap();
        (0..3).for_each(|_| counter.launch().unwrap());
        // SAFETY: the buffers are alive.
        unsafe { graph.launch(&counter.stream) }.unwrap();
        assert_eq!(counter.numbers().unwrap(), [6; 32]);
    }
}

#[test]
fn early_launches_follow_copies_and_synchronized_work() {
    // A launch may only overlap a launch directly before it.
    let counter = Counter::new(&ptx("sm_90a", ""));
    counter.launch().unwrap();
    assert_eq!(counter.numbers().unwrap(), [1; 32]);
    counter.launch().unwrap();
    let numbers = PinnedBuffer::<u32>::zeroed(&counter.context, 32).unwrap();
    // SAFETY: the buffers live until the stream is synchronized, and nothing else uses them.
    unsafe { counter.stream.download_async(&counter.x, &numbers) }.unwrap();
    counter.launch().unwrap();
    counter.stream.synchronize().unwrap();
    assert_eq!(numbers[..], [2; 32]);
    // An event between two launches does not order them.
    counter.launch().unwrap();
    launch::Event::new(&counter.context).unwrap().record(&counter.stream).unwrap();
    counter.launch().unwrap();
    counter.is_early();
}

#[test]
fn graphs_keep_early_launches() {
    for (beginning, is_right) in [(WAIT, true), ("", false)] {
        let counter = Counter::new(&ptx("sm_90a", beginning));
        let graph = counter.stream.capture(|| (0..3).try_for_each(|_| counter.launch())).unwrap();
        // SAFETY: the buffers are alive.
        (0..2).for_each(|_| unsafe { graph.launch(&counter.stream) }.unwrap());
        match is_right {
            true => assert_eq!(counter.numbers().unwrap(), [6; 32]),
            false => counter.is_early(),
        }
    }
}
