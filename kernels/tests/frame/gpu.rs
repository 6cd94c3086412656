//! The device that kernels are tested on: a GPU with `QUIRE_TEST_DEVICE=cuda`, otherwise the emulator. Errors fail the
//! test.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::launch::{KernelCall, LaunchShape};
use emulator::CostReport;
use launch::{Driver, Error, Ptx};
pub use workbench::Buffer;
use workbench::Case;

/// The shipped PTX, by target.
pub const TARGETS: [(&str, &str); 2] =
    [("sm_80", include_str!("../../prebuilt/sm_80.ptx")), ("sm_90a", include_str!("../../prebuilt/sm_90a.ptx"))];

/// A device and the PTX of one target.
pub struct Gpu(workbench::Gpu);

/// Returns the driver that tests use.
pub fn driver() -> &'static Driver {
    Driver::under_test().unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the compute capability of a target's smallest device.
fn capability(target: &str) -> (u32, u32) {
    if target == "sm_90a" { (9, 0) } else { (8, 0) }
}

fn parsed(ptx: impl Into<Cow<'static, str>>) -> Arc<Ptx<'static>> {
    Arc::new(Ptx::new(ptx).unwrap_or_else(|error| panic!("{error}")))
}

impl Gpu {
    /// Creates a device with the PTX for `target`. The emulator uses the natural order of warps and blocks.
    pub fn new(target: &str) -> Gpu {
        // Devices share the texts.
        static TEXTS: LazyLock<[Arc<Ptx<'static>>; 2]> = LazyLock::new(|| TARGETS.map(|(_, ptx)| parsed(ptx)));
        let at = TARGETS.iter().position(|(name, _)| *name == target).unwrap();
        Gpu::of(capability(target), TEXTS[at].clone())
    }

    /// Creates a device that runs this PTX.
    pub fn with_ptx(ptx: &str) -> Gpu {
        let is_hopper = ptx.lines().find(|line| line.starts_with(".target")) == Some(".target sm_90a");
        Gpu::of(capability(if is_hopper { "sm_90a" } else { "sm_80" }), parsed(ptx.to_owned()))
    }

    fn of(capability: (u32, u32), ptx: Arc<Ptx<'static>>) -> Gpu {
        Gpu(workbench::Gpu::new(driver(), capability, ptx).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Returns whether the device has Hopper's features.
    pub fn has_hopper(&self) -> bool {
        self.0.context().limits().capability == (9, 0)
    }

    /// Sets the emulator's order of warps and blocks from now on. 0 is the natural order.
    pub fn seed(&mut self, seed: u64) {
        self.0.seed(seed);
    }

    /// Returns whether the device is the emulator, which reports the cost of launches.
    pub fn is_emulator(&self) -> bool {
        self.0.context().is_emulator()
    }

    /// Runs a case and asserts that the result is right. Returns the emulator's report, which is empty on a GPU.
    pub fn run(&mut self, case: &Case) -> CostReport {
        let (error, report) = self.try_run(case).unwrap_or_else(|error| panic!("{error}"));
        assert!(error <= 1.0, "{}, {}: the error is {error} times the allowed one", case.kernel, case.shape);
        report
    }

    /// Returns whether a case faults or gives a wrong result with this PTX, in one of a few orders of warps and blocks.
    pub fn notices(ptx: &str, case: &Case) -> bool {
        (0..4).any(|seed| {
            let mut gpu = Gpu::with_ptx(ptx);
            gpu.seed(seed);
            !gpu.try_run(case).is_ok_and(|(error, _)| error <= 1.0)
        })
    }

    fn try_run(&mut self, case: &Case) -> Result<(f64, CostReport), Error> {
        let prepared = (case.prepare)(&mut self.0)?;
        let reports = self.0.reported(|gpu| (prepared.launch)(gpu))?;
        let report = reports.into_iter().next().map(|launch| launch.report).unwrap_or_default();
        Ok(((prepared.error)(&self.0)?, report))
    }

    /// Returns the device itself, for code that tests share with benchmarks.
    pub fn bench(&mut self) -> &mut workbench::Gpu {
        &mut self.0
    }

    /// Returns the names of the kernels that were launched.
    pub fn launched(&self) -> BTreeSet<String> {
        self.0.launched().keys().map(|&name| name.to_owned()).collect()
    }

    /// Creates a buffer with these elements. Faults call it `name`.
    pub fn upload<T: NoUninit>(&mut self, name: &str, elements: &[T]) -> Buffer<T> {
        self.0.upload(name, elements).unwrap()
    }

    /// Creates a buffer that has not been written. A kernel that reads it first faults.
    pub fn alloc<T>(&mut self, name: &str, len: usize) -> Buffer<T> {
        self.0.alloc(name, len).unwrap()
    }

    /// Overwrites a whole buffer.
    pub fn write<T: NoUninit>(&mut self, buffer: Buffer<T>, elements: &[T]) {
        self.0.write(buffer, elements).unwrap();
    }

    /// Returns all elements of a buffer, which must all have been written.
    pub fn download<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Vec<T> {
        self.0.download(buffer).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Launches a kernel and asserts that it does not fault. Returns the emulator's report, which is empty on a GPU.
    ///
    /// # Safety
    /// On a GPU, the kernel's contract holds. The emulator reports violations.
    pub unsafe fn launch(&mut self, shape: LaunchShape, call: impl Into<KernelCall>) -> CostReport {
        // SAFETY: the contract is the same.
        unsafe { self.try_launch(shape, call) }.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Launches a kernel that may fault.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub unsafe fn try_launch(&mut self, shape: LaunchShape, call: impl Into<KernelCall>) -> Result<CostReport, Error> {
        let call = call.into();
        // SAFETY: the kernel's contract holds, by this function's contract.
        let reports = self.0.reported(|gpu| unsafe { gpu.launch(shape, call) })?;
        Ok(reports.into_iter().next().map(|launch| launch.report).unwrap_or_default())
    }
}
