//! A device with buffers, for launching kernels one at a time.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{AnyBitPattern, NoUninit};
use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};
use emulator::LaunchOptions;
use emulator::driver::{self, DeviceOptions, LaunchReport};
use launch::{Context, DeviceBuffer, Driver, Graph, Module, Ptx, Result, Stream};

/// A device and the PTX that it runs. A kernel is loaded at its first launch. Buffers live as long as the `Gpu`.
pub struct Gpu {
    stream: Arc<Stream>,
    context: Context,
    ptx: Arc<Ptx<'static>>,
    modules: HashMap<&'static str, Module>,
    buffers: Vec<DeviceBuffer<u8>>,
    options: LaunchOptions,
    launched: BTreeMap<&'static str, LaunchShape>,
    /// Whether launches are only recorded in `launched`.
    rehearses: bool,
}

/// Name of the buffer with a projection's weight. No launch writes it, so kernels may read it before they wait for
/// preceding launches.
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
    /// Returns the address for a kernel that reads. The element type may differ, for example in a kernel that reads
    /// vectors.
    pub fn ptr<U>(self) -> DevicePtr<U> {
        DevicePtr::from_address(self.address)
    }

    /// Returns the address for a kernel that writes.
    pub fn mut_ptr<U>(self) -> DevicePtrMut<U> {
        DevicePtrMut::from_address(self.address)
    }

    /// Returns the number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Creates contexts. If the driver is the emulator, its devices get these options.
pub(crate) fn with_devices<T>(driver: &Driver, options: DeviceOptions, make: impl FnOnce() -> T) -> T {
    // The emulator's configuration applies to all contexts created later, by any thread.
    static CONFIGURED: Mutex<()> = Mutex::new(());
    let _alone = CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner);
    if driver.is_emulator() {
        driver::configure(options);
    }
    make()
}

impl Gpu {
    /// Opens the first device of `driver` to run kernels of this PTX. Devices may share it. The emulator reports the given
    /// compute capability.
    ///
    /// # Errors
    /// [`launch::Error`] if there is no device.
    pub fn new(driver: &'static Driver, capability: (u32, u32), ptx: Arc<Ptx<'static>>) -> Result<Gpu> {
        let options = DeviceOptions { capability, ..DeviceOptions::default() };
        let context = with_devices(driver, options, || Context::new(driver, 0))?;
        Ok(Gpu {
            stream: Arc::new(context.stream()?),
            context,
            ptx,
            modules: HashMap::new(),
            buffers: Vec::new(),
            // The bench launches kernels one at a time, but the engine launches them back to back.
            options: LaunchOptions { early_accesses: false, early_reads: &[PROJECTION], ..LaunchOptions::default() },
            launched: BTreeMap::new(),
            rehearses: false,
        })
    }

    /// Returns the context of the device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the stream that kernels are launched in.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets the emulator's order of warps and blocks from now on. 0 is the natural order. Other seeds give
    /// random orders.
    pub fn seed(&mut self, seed: u64) {
        self.options.seed = seed;
    }

    /// Creates a buffer with these elements. The emulator's fault messages call it `name`.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn upload<T: NoUninit>(&mut self, name: &str, elements: &[T]) -> Result<Buffer<T>> {
        let buffer = DeviceBuffer::from_slice(&self.stream, bytemuck::cast_slice(elements))?;
        Ok(self.keep(name, buffer, elements.len()))
    }

    /// Creates an uninitialised buffer. In the emulator, a kernel that reads an unwritten element faults.
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

    /// Overwrites a whole buffer.
    ///
    /// # Errors
    /// [`launch::Error::Length`] if the number of elements differs.
    pub fn write<T: NoUninit>(&mut self, buffer: Buffer<T>, elements: &[T]) -> Result<()> {
        self.stream.upload(bytemuck::cast_slice(elements), &self.buffers[buffer.index])
    }

    /// Returns all elements of a buffer. In the emulator, all of them must have been written.
    ///
    /// # Errors
    /// [`launch::Error`], also for an earlier failure.
    pub fn download<T: AnyBitPattern>(&self, buffer: Buffer<T>) -> Result<Vec<T>> {
        let bytes = self.buffers[buffer.index].to_vec(&self.stream)?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Returns the launched kernels, each with the shape of its last launch.
    pub fn launched(&self) -> &BTreeMap<&'static str, LaunchShape> {
        &self.launched
    }

    /// Queues a launch. [`finish`](Self::finish) waits for it.
    ///
    /// # Safety
    /// The kernel's contract must hold. The emulator reports violations. A GPU may write anywhere in its own memory and
    /// in page-locked memory of the host.
    ///
    /// # Errors
    /// [`launch::Error`] if the launch does not match the kernel or the device.
    pub unsafe fn launch(&mut self, shape: LaunchShape, call: impl Into<KernelCall>) -> Result<()> {
        let call = call.into();
        let descriptor = call.descriptor();
        self.launched.insert(descriptor.name, shape);
        if self.rehearses {
            return Ok(());
        }
        if !self.modules.contains_key(descriptor.name) {
            self.modules.insert(descriptor.name, Module::load_from(&self.context, &self.ptx, &[descriptor])?);
        }
        if self.context.is_emulator() {
            self.context.make_current()?;
            // The call cannot fail, since the context is current.
            let _ = driver::set_launch_options(self.options.clone());
        }
        // SAFETY: the caller guarantees the kernel's contract.
        unsafe { self.modules[descriptor.name].launch(&self.stream, shape, call) }
    }

    /// Waits for all launches.
    ///
    /// # Errors
    /// [`launch::Error`] with the emulator's fault, if a kernel faulted.
    pub fn finish(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// Runs `work` without its launches. They are only recorded in [`launched`](Self::launched).
    ///
    /// # Errors
    /// The error of `work`.
    pub fn rehearse(&mut self, work: impl FnOnce(&mut Gpu) -> Result<()>) -> Result<()> {
        self.rehearses = true;
        let done = work(self);
        self.rehearses = false;
        done
    }

    /// Captures the launches of `work` in a graph instead of running them.
    ///
    /// # Errors
    /// The error of `work`, or [`launch::Error`] if it does anything but launch.
    pub fn captured(&mut self, work: impl FnOnce(&mut Gpu) -> Result<()>) -> Result<Graph> {
        let stream = Arc::clone(&self.stream);
        stream.capture(|| work(self))
    }

    /// Runs `work`, waits for it, and returns the emulator's report of each launch. On a GPU the list is empty.
    ///
    /// # Errors
    /// The error of `work`, or [`launch::Error`] if a kernel faults.
    pub fn reported(&mut self, work: impl FnOnce(&mut Gpu) -> Result<()>) -> Result<Vec<LaunchReport>> {
        // Wait for earlier launches, which the emulator may not have started. The reports must not include them.
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
