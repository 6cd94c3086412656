//! The device that kernels are tested on: a GPU with `QUIRE_TEST_DEVICE=cuda`, else the emulator. What goes wrong fails the test.

use std::collections::BTreeSet;

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::launch::{Args, Entry};
use emulator::Report;
use launch::{Driver, Error};
pub use workbench::Buffer;

/// What is shipped, by the GPU it is for.
pub const TARGETS: [(&str, &str); 2] =
    [("sm_80", include_str!("../../prebuilt/sm_80.ptx")), ("sm_90a", include_str!("../../prebuilt/sm_90a.ptx"))];

/// A device and the PTX of one target.
pub struct Gpu(workbench::Gpu);

/// The driver that tests use.
pub fn driver() -> &'static Driver {
    let name = std::env::var("QUIRE_TEST_DEVICE").unwrap_or_else(|_| "emulator".to_owned());
    Driver::named(&name).unwrap_or_else(|error| panic!("{error}"))
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

    /// In the emulator, warps and blocks run in an order of `seed`'s making from here on; 0 is the natural one.
    pub fn seed(&mut self, seed: u64) {
        self.0.seed(seed);
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
    pub fn launch<A: Args>(
        &mut self,
        entry: Entry<A>,
        grid: (u32, u32, u32),
        threads: u32,
        dynamic_shared: u32,
        args: A,
    ) -> Report {
        self.try_launch(entry, grid, threads, dynamic_shared, args).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Launches a kernel that may be at fault.
    pub fn try_launch<A: Args>(
        &mut self,
        entry: Entry<A>,
        grid: (u32, u32, u32),
        threads: u32,
        dynamic_shared: u32,
        args: A,
    ) -> Result<Report, Error> {
        let reports = self.0.reported(|gpu| gpu.launch(entry, grid, threads, dynamic_shared, args))?;
        Ok(reports.into_iter().next().map(|launch| launch.report).unwrap_or_default())
    }
}
