//! Calls the driver API the way a host program does, for tests with one or several devices.

use emulator::driver;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Calls a driver function and returns its result code.
macro_rules! call {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        let function = driver::symbol(stringify!($name)).unwrap();
        // SAFETY: the function of this name has this signature in libcuda, and every pointer is to memory that outlives
        // the call.
        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> u32>(function)($($arg),*) }
    }};
}

/// A device with a context. [`Device::new`] makes the context current.
pub struct Device {
    pub ordinal: i32,
    context: *mut c_void,
}

// SAFETY: a driver handle is only a number, and the driver may be called from any thread.
unsafe impl Sync for Device {}

/// A loaded kernel.
pub struct Kernel(*mut c_void);

// SAFETY: as for `Device`.
unsafe impl Sync for Kernel {}

impl Device {
    pub fn new(ordinal: i32) -> Self {
        let mut context = ptr::null_mut();
        assert_eq!(call!(cuInit(0 => u32)), 0);
        assert_eq!(call!(cuCtxCreate_v2(&mut context => &mut *mut c_void, 0 => u32, ordinal => i32)), 0);
        Self { ordinal, context }
    }

    /// Makes the device's context current.
    pub fn enter(&self) {
        assert_eq!(call!(cuCtxSetCurrent(self.context => *mut c_void)), 0);
    }

    /// Enables access to a peer's memory.
    pub fn enable_peer(&self, peer: &Device) {
        self.enter();
        assert_eq!(call!(cuCtxEnablePeerAccess(peer.context => *mut c_void, 0 => u32)), 0);
        assert_eq!(call!(cuCtxEnablePeerAccess(peer.context => *mut c_void, 0 => u32)), 704);
    }

    /// Disables access to a peer's memory.
    pub fn disable_peer(&self, peer: &Device) {
        assert_eq!(call!(cuCtxDisablePeerAccess(peer.context => *mut c_void)), 0);
    }

    pub fn kernel(&self, ptx: &str, name: &str) -> Kernel {
        let (ptx, name) = (CString::new(ptx).unwrap(), CString::new(name).unwrap());
        let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(call!(cuModuleLoadData(&mut module => &mut *mut c_void, ptx.as_ptr() => *const _)), 0);
        let code = call!(cuModuleGetFunction(&mut kernel => &mut *mut c_void, module => *mut c_void, name.as_ptr() => *const _));
        assert_eq!(code, 0);
        Kernel(kernel)
    }

    /// Allocates memory filled with zeros.
    pub fn zeros(&self, bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(call!(cuMemAlloc_v2(&mut address => &mut u64, bytes => usize)), 0);
        assert_eq!(call!(cuMemsetD8_v2(address => u64, 0 => u8, bytes => usize)), 0);
        assert_eq!(call!(cuCtxSynchronize()), 0);
        address
    }

    /// Queues a launch of one warp. `sizes` are the argument sizes in bytes.
    pub fn launch(&self, kernel: &Kernel, args: &[u64], sizes: &[usize]) {
        assert_eq!(self.try_launch(kernel, args, sizes), 0);
    }

    /// Queues a launch of one warp and returns the result code.
    pub fn try_launch(&self, kernel: &Kernel, args: &[u64], sizes: &[usize]) -> u32 {
        assert_eq!(args.len(), sizes.len());
        let pointers: Vec<*const u64> = args.iter().map(|arg| arg as *const u64).collect();
        let null = ptr::null_mut::<c_void>();
        call!(cuLaunchKernel(
            kernel.0 => *mut c_void, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
            null => *mut c_void, pointers.as_ptr() => *const *const u64, null => *mut c_void
        ))
    }

    /// Launches blocks of one thread in clusters of the given shape. The kernel has one pointer parameter. Returns the
    /// result code.
    pub fn launch_in_clusters(&self, kernel: &Kernel, blocks: u32, [x, y, z]: [u32; 3], pointer: u64) -> u32 {
        #[repr(C)]
        struct Attribute {
            id: u32,
            padding: u32,
            value: [u32; 16],
        }
        #[repr(C)]
        struct Config {
            numbers: [u32; 7],
            stream: *mut c_void,
            attributes: *const Attribute,
            count: u32,
        }
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[x, y, z]);
        let attribute = Attribute { id: 4, padding: 0, value };
        let numbers = [blocks, 1, 1, 1, 1, 1, 0];
        let config = Config { numbers, stream: ptr::null_mut(), attributes: &attribute, count: 1 };
        let arguments = [&pointer as *const u64];
        call!(cuLaunchKernelEx(
            &config => *const Config, kernel.0 => *mut c_void, arguments.as_ptr() => *const *const u64,
            ptr::null_mut() => *mut c_void
        ))
    }

    /// Waits for the device and reads words of its memory. Returns `None` if the device has failed. Makes the context
    /// current.
    pub fn words(&self, from: u64, count: usize) -> Option<Vec<u32>> {
        self.enter();
        let mut words = vec![0u32; count];
        let code = call!(cuMemcpyDtoH_v2(words.as_mut_ptr() => *mut u32, from => u64, 4 * count => usize));
        (code == 0).then_some(words)
    }
}

/// Clears the calling thread's current context.
pub fn leave() {
    assert_eq!(call!(cuCtxSetCurrent(ptr::null_mut() => *mut c_void)), 0);
}

/// A word of page-locked memory that kernels can access.
pub struct Word(*mut c_void);

// SAFETY: the word is only accessed as an atomic.
unsafe impl Sync for Word {}

impl Word {
    pub fn new() -> Self {
        let mut pointer = ptr::null_mut();
        let flags = 1 | 2; // portable (all contexts), mapped (kernels)
        assert_eq!(call!(cuMemHostAlloc(&mut pointer => &mut *mut c_void, 4 => usize, flags => u32)), 0);
        let word = Self(pointer);
        word.set(0);
        word
    }

    pub fn set(&self, value: u32) {
        // SAFETY: the driver allocated four page-aligned bytes at this address.
        unsafe { AtomicU32::from_ptr(self.0.cast()) }.store(value, Ordering::Relaxed);
    }

    pub fn on_device(&self) -> u64 {
        let mut address = 0;
        let code = call!(cuMemHostGetDevicePointer_v2(&mut address => &mut u64, self.0 => *mut c_void, 0 => u32));
        assert_eq!(code, 0);
        address
    }
}
