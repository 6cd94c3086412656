//! A device with buffers, on which kernels are launched one at a time.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};
use emulator::LaunchOptions;
use emulator::driver::{self, DeviceOptions, LaunchReport};
use launch::{Context, DeviceBuffer, Driver, Graph, Module, Result, Stream};

/// A device and the PTX that it runs. Kernels are loaded when they are first launched; buffers live as long as it does.
pub struct Gpu {
    stream: Arc<Stream>,
    context: Context,
    ptx: Arc<str>,
    modules: HashMap<&'static str, Module>,
    buffers: Vec<DeviceBuffer<u8>>,
    options: LaunchOptions,
    launched: BTreeMap<&'static str, LaunchShape>,
    /// Launches are noted, and not made.
    rehearses: bool,
}

/// The buffer with a projection's weight, which kernels may read before they wait for launches ahead: none writes it.
pub(crate) const PROJECTION: &str = "projection";

/// `len` elements in a [`Gpu`]'s memory.
#[derive(Debug)]
pub struct Buffer<T> {
    index: usize,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Buffer<T> {}

impl<T> Buffer<T> {
    /// The address, for a kernel that reads; of another element type where a kernel reads by vectors.
    pub fn ptr<U>(self) -> DevicePtr<U> {
        DevicePtr::from_address(self.address)
    }

    /// The address, for a kernel that writes.
    pub fn mut_ptr<U>(self) -> DevicePtrMut<U> {
        DevicePtrMut::from_address(self.address)
    }

    /// The number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Makes contexts on devices that are like this if they are emulated.
pub(crate) fn with_devices<T>(driver: &Driver, options: DeviceOptions, make: impl FnOnce() -> T) -> T {
    // What the emulator is to be holds for contexts made from then on, by whichever thread.
    static CONFIGURED: Mutex<()> = Mutex::new(());
    let _alone = CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner);
    if driver.is_emulator() {
        driver::configure(options);
    }
    make()
}

impl Gpu {
    /// The first device of `driver`, to run kernels of this PTX. The emulator pretends to have the given compute
    /// capability.
    ///
    /// # Errors
    /// [`launch::Error`] if there is no device.
    pub fn new(driver: &'static Driver, capability: (u32, u32), ptx: impl Into<Arc<str>>) -> Result<Gpu> {
        let options = DeviceOptions { capability, ..DeviceOptions::default() };
        let context = with_devices(driver, options, || Context::new(driver, 0))?;
        Ok(Gpu {
            stream: Arc::new(context.stream()?),
            context,
            ptx: ptx.into(),
            modules: HashMap::new(),
            buffers: Vec::new(),
            // Kernels are launched one at a time, but the engine launches one behind the other.
            options: LaunchOptions { early_accesses: false, early_reads: &[PROJECTION], ..LaunchOptions::default() },
            launched: BTreeMap::new(),
            rehearses: false,
        })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The stream that kernels are launched in.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// In the emulator, warps and blocks run in an order that is drawn from `seed` from here on; 0 is the natural
    /// order.
    pub fn seed(&mut self, seed: u64) {
        self.options.seed = seed;
    }

    /// A buffer with these elements; faults call it `name`.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn upload<T: NoUninit>(&mut self, name: &str, elements: &[T]) -> Result<Buffer<T>> {
        let buffer = DeviceBuffer::from_slice(&self.stream, bytemuck::cast_slice(elements))?;
        Ok(self.keep(name, buffer, elements.len()))
    }

    /// A buffer that nothing was written to: in the emulator, a kernel that reads it first is at fault.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn alloc<T>(&mut self, name: &str, len: usize) -> Result<Buffer<T>> {
        let buffer = DeviceBuffer::uninit(&self.context, len * size_of::<T>())?;
        Ok(self.keep(name, buffer, len))
    }

    fn keep<T>(&mut self, name: &str, buffer: DeviceBuffer<u8>, len: usize) -> Buffer<T> {
        let address = buffer.address();
        self.buffers.push(buffer.named(name));
        Buffer { index: self.buffers.len() - 1, address, len, element: PhantomData }
    }

    /// Writes a whole buffer again.
    ///
    /// # Errors
    /// [`launch::Error::Length`] unless there are as many elements as it has.
    pub fn write<T: NoUninit>(&mut self, buffer: Buffer<T>, elements: &[T]) -> Result<()> {
        self.stream.upload(bytemuck::cast_slice(elements), &self.buffers[buffer.index])
    }

    /// All elements of a buffer. In the emulator, each must have been written.
    ///
    /// # Errors
    /// [`launch::Error`], also for what failed before.
    pub fn download<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Result<Vec<T>> {
        let bytes = self.buffers[buffer.index].to_vec(&self.stream)?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// The kernels that were launched, each with the shape of its last launch.
    pub fn launched(&self) -> &BTreeMap<&'static str, LaunchShape> {
        &self.launched
    }

    /// Queues a launch; [`finish`](Self::finish) waits for it.
    ///
    /// # Safety
    /// The kernel's contract holds. The emulator reports where it does not; a GPU may write anywhere in its own memory and in
    /// page-locked memory of the host.
    ///
    /// # Errors
    /// [`launch::Error`] if kernel and launch do not fit each other or the device.
    pub unsafe fn launch(&mut self, shape: LaunchShape, call: impl Into<KernelCall>) -> Result<()> {
        let call = call.into();
        let descriptor = call.descriptor();
        self.launched.insert(descriptor.name, shape);
        if self.rehearses {
            return Ok(());
        }
        if !self.modules.contains_key(descriptor.name) {
            self.modules.insert(descriptor.name, Module::load(&self.context, &self.ptx, &[descriptor])?);
        }
        if self.context.is_emulator() {
            self.context.make_current()?;
            // The context is current.
            let _ = driver::set_launch_options(self.options.clone());
        }
        // SAFETY: the kernel's contract holds, as this function's `# Safety` demands.
        unsafe { self.modules[descriptor.name].launch(&self.stream, shape, call) }
    }

    /// Waits for all launches.
    ///
    /// # Errors
    /// [`launch::Error`] with the emulator's fault, if a kernel was at fault.
    pub fn finish(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// Does `work` without the launches: they only show in [`launched`](Self::launched).
    ///
    /// # Errors
    /// What `work` fails with.
    pub fn rehearse(&mut self, work: impl FnOnce(&mut Gpu) -> Result<()>) -> Result<()> {
        self.rehearses = true;
        let done = work(self);
        self.rehearses = false;
        done
    }

    /// Records the launches of `work` instead of making them.
    ///
    /// # Errors
    /// What `work` fails with, and [`launch::Error`] if it does anything else.
    pub fn captured(&mut self, work: impl FnOnce(&mut Gpu) -> Result<()>) -> Result<Graph> {
        let stream = Arc::clone(&self.stream);
        stream.capture(|| work(self))
    }

    /// Does `work`, waits for it, and returns the emulator's report of each launch; a GPU gives none.
    ///
    /// # Errors
    /// What `work` fails with, and [`launch::Error`] for a kernel's fault.
    pub fn reported(&mut self, work: impl FnOnce(&mut Gpu) -> Result<()>) -> Result<Vec<LaunchReport>> {
        // What was asked for before is not part of it: the emulator may not have begun with that.
        self.finish()?;
        let emulator = self.context.is_emulator();
        if emulator {
            self.context.make_current()?;
            let _ = driver::collect_reports(true); // the context is current
        }
        work(self)?;
        self.finish()?;
        if !emulator {
            return Ok(Vec::new());
        }
        let reports = driver::take_reports().unwrap_or_default();
        let _ = driver::collect_reports(false);
        Ok(reports)
    }
}
