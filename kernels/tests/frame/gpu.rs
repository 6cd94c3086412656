//! The device that kernels are tested on.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::launch::{Args, Entry};
use emulator::{Arg, Device, LaunchOptions, Module, Report};

/// What is shipped, by the GPU it is for.
pub const TARGETS: [(&str, &str); 2] =
    [("sm_80", include_str!("../../prebuilt/sm_80.ptx")), ("sm_90a", include_str!("../../prebuilt/sm_90a.ptx"))];

/// The emulator with the shipped PTX of one target loaded.
pub struct Gpu {
    device: Device,
    module: Arc<Module>,
    options: LaunchOptions,
    launched: BTreeSet<String>,
}

/// `len` elements in the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<T> {
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// The address, as kernels take it; of another element type where a kernel reads by vectors.
    pub fn ptr<U>(self) -> *const U {
        self.address as *const U
    }

    /// The address, for a kernel that writes.
    pub fn mut_ptr<U>(self) -> *mut U {
        self.address as *mut U
    }
}

impl Gpu {
    /// A device with empty memory, running the PTX for `target` in the natural order of warps and blocks.
    pub fn new(target: &str) -> Gpu {
        let at = TARGETS.iter().position(|(name, _)| *name == target).unwrap();
        static MODULES: [OnceLock<Arc<Module>>; 2] = [const { OnceLock::new() }; 2];
        Gpu::of(MODULES[at].get_or_init(|| Arc::new(Module::parse(TARGETS[at].1).unwrap())).clone())
    }

    /// A device that runs this PTX.
    pub fn with_ptx(ptx: &str) -> Gpu {
        Gpu::of(Arc::new(Module::parse(ptx).unwrap()))
    }

    fn of(module: Arc<Module>) -> Gpu {
        Gpu { device: Device::new(), module, options: LaunchOptions::default(), launched: BTreeSet::new() }
    }

    /// From here on warps and blocks run in an order of `seed`'s making; 0 is the natural one.
    pub fn seed(&mut self, seed: u64) {
        self.options.seed = seed;
    }

    /// The names of the kernels that ran to their ends.
    pub fn launched(&self) -> &BTreeSet<String> {
        &self.launched
    }

    /// A buffer with these elements; faults call it `name`.
    pub fn upload<T: NoUninit>(&mut self, name: &str, elements: &[T]) -> Buffer<T> {
        let address = self.device.alloc_from(name, bytemuck::cast_slice(elements));
        Buffer { address, len: elements.len(), element: PhantomData }
    }

    /// A buffer that nothing was written to: a kernel that reads it first is at fault.
    pub fn alloc<T>(&mut self, name: &str, len: usize) -> Buffer<T> {
        let address = self.device.alloc_named(name, len * size_of::<T>());
        Buffer { address, len, element: PhantomData }
    }

    /// Writes a buffer again.
    pub fn write<T: NoUninit>(&mut self, buffer: Buffer<T>, elements: &[T]) {
        assert!(elements.len() <= buffer.len);
        self.device.write(buffer.address, bytemuck::cast_slice(elements)).unwrap();
    }

    /// All elements of a buffer; each must have been written.
    pub fn download<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Vec<T> {
        let bytes = self.device.read(buffer.address, buffer.len * size_of::<T>()).unwrap();
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// Launches a kernel, which must raise no fault.
    pub fn launch<A: Args>(
        &mut self,
        entry: Entry<A>,
        grid: (u32, u32, u32),
        threads: u32,
        dynamic_shared: u32,
        args: A,
    ) -> Report {
        self.try_launch(entry, grid, threads, dynamic_shared, args).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Launches a kernel that may be at fault.
    pub fn try_launch<A: Args>(
        &mut self,
        entry: Entry<A>,
        (x, y, z): (u32, u32, u32),
        threads: u32,
        dynamic_shared: u32,
        mut args: A,
    ) -> Result<Report, Box<emulator::Fault>> {
        let descriptor = entry.descriptor();
        assert!(descriptor.bounds.max_threads.is_none_or(|most| threads <= most), "too many threads");
        let mut params = descriptor.params.iter();
        let mut list = Vec::new();
        args.addresses(|address| {
            let size = params.next().unwrap().size;
            // SAFETY: the address of an argument, whose size the descriptor says; arguments have no padding.
            list.push(Arg::Bytes(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size) }.to_vec()));
        });
        let block = [threads, 1, 1];
        let (options, shared) = (&self.options, dynamic_shared as usize);
        let report =
            self.device.launch_with(options, &self.module, descriptor.name, [x, y, z], block, shared, &list)?;
        self.launched.insert(descriptor.name.to_owned());
        Ok(report)
    }
}
