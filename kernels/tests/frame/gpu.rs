//! The device that kernels are tested on: a GPU with `QUIRE_TEST_DEVICE=cuda`, else the emulator. What goes wrong fails the test.

use std::collections::BTreeSet;

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::launch::{KernelCall, LaunchShape};
use emulator::CostReport;
use launch::{Driver, Error};
pub use workbench::Buffer;
use workbench::Case;

/// What is shipped, by the GPU it is for.
pub const TARGETS: [(&str, &str); 2] =
    [("sm_80", include_str!("../../prebuilt/sm_80.ptx")), ("sm_90a", include_str!("../../prebuilt/sm_90a.ptx"))];

/// A device and the PTX of one target.
pub struct Gpu(workbench::Gpu);

/// The driver that tests use.
pub fn driver() -> &'static Driver {
    Driver::under_test().unwrap_or_else(|error| panic!("{error}"))
}

impl Gpu {
    /// A device with the PTX for `target`, in the emulator with the natural order of warps and blocks.
    pub fn new(target: &str) -> Gpu {
        let (_, ptx) = TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
        Gpu::with_ptx(ptx)
    }

    /// A device that runs this PTX.
    pub fn with_ptx(ptx: &str) -> Gpu {
        let capability = if ptx.contains("\n.target sm_90a") { (9, 0) } else { (8, 0) };
        Gpu(workbench::Gpu::new(driver(), capability, ptx).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Whether the device has what Hopper has.
    pub fn has_hopper(&self) -> bool {
        self.0.context().limits().capability == (9, 0)
    }

    /// In the emulator, warps and blocks run in an order of `seed`'s making from here on; 0 is the natural one.
    pub fn seed(&mut self, seed: u64) {
        self.0.seed(seed);
    }

    /// Whether the device is the emulator, which reports what launches cost.
    pub fn is_emulator(&self) -> bool {
        self.0.context().is_emulator()
    }

    /// Runs a case, which must come out right. The emulator's report; on a GPU an empty one.
    pub fn run(&mut self, case: &Case) -> CostReport {
        let (error, report) = self.try_run(case).unwrap_or_else(|error| panic!("{error}"));
        assert!(error <= 1.0, "{}, {}: {error} times what is allowed", case.kernel, case.shape);
        report
    }

    /// Whether a case is at fault or comes out wrong with this PTX, in one of a few orders of warps and blocks.
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

    /// The device itself, for what tests share with benchmarks.
    pub fn bench(&mut self) -> &mut workbench::Gpu {
        &mut self.0
    }

    /// The names of the kernels that were launched.
    pub fn launched(&self) -> BTreeSet<String> {
        self.0.launched().keys().map(|&name| name.to_owned()).collect()
    }

    /// A buffer with these elements; faults call it `name`.
    pub fn upload<T: NoUninit>(&mut self, name: &str, elements: &[T]) -> Buffer<T> {
        self.0.upload(name, elements).unwrap()
    }

    /// A buffer that nothing was written to: a kernel that reads it first is at fault.
    pub fn alloc<T>(&mut self, name: &str, len: usize) -> Buffer<T> {
        self.0.alloc(name, len).unwrap()
    }

    /// Writes a whole buffer again.
    pub fn write<T: NoUninit>(&mut self, buffer: Buffer<T>, elements: &[T]) {
        self.0.write(buffer, elements).unwrap();
    }

    /// All elements of a buffer; each must have been written.
    pub fn download<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Vec<T> {
        self.0.download(buffer).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Launches a kernel, which must raise no fault. The emulator's report; on a GPU an empty one.
    ///
    /// # Safety
    /// On a GPU, the kernel's contract holds. The emulator reports where it does not.
    pub unsafe fn launch(&mut self, shape: LaunchShape, call: impl Into<KernelCall>) -> CostReport {
        // SAFETY: this function's contract is the same.
        unsafe { self.try_launch(shape, call) }.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Launches a kernel that may be at fault.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub unsafe fn try_launch(&mut self, shape: LaunchShape, call: impl Into<KernelCall>) -> Result<CostReport, Error> {
        let call = call.into();
        // SAFETY: this function's contract is the kernel's.
        let reports = self.0.reported(|gpu| unsafe { gpu.launch(shape, call) })?;
        Ok(reports.into_iter().next().map(|launch| launch.report).unwrap_or_default())
    }
}
