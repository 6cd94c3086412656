//! A client like a C program: it loads the library and looks up functions by name.

use libloading::Library;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

pub type Handle = *mut c_void;

/// The CUDA version that the client is built for.
pub const VERSION: i32 = 12_080;

/// The library that cargo built next to the tests.
pub fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = std::env::current_exe().unwrap().with_file_name("libcuda.so");
        // SAFETY: when the library is loaded, it only registers its own functions.
        unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

/// Looks up a function by its unversioned name with `cuGetProcAddress`. Returns `None` if it does not exist.
pub fn find(name: &str) -> Option<*const c_void> {
    type Find = unsafe extern "C" fn(*const c_char, *mut *const c_void, i32, u64, *mut u32) -> u32;
    let (text, mut address, mut status) = (CString::new(name).unwrap(), null(), 9);
    // SAFETY: the function of this name has this signature, and every pointer is to memory that outlives the call.
    let code = unsafe {
        let find = library().get::<Find>(b"cuGetProcAddress_v2").unwrap();
        find(text.as_ptr(), &mut address, VERSION, 0, &mut status)
    };
    assert_eq!((code, status), if address.is_null() { (500, 1) } else { (0, 0) });
    (!address.is_null()).then_some(address)
}

/// Calls a driver function and returns its result code.
macro_rules! call {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        let function = $crate::common::find(stringify!($name)).unwrap();
        // SAFETY: the function of this name has this signature in libcuda, and every pointer is to memory that outlives
        // the call.
        unsafe {
            std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> u32>(function)($($arg),*)
        }
    }};
}

/// Initialises the driver and makes the primary context of a device current.
pub fn enter(device: i32) -> Handle {
    let mut context = null_mut();
    assert_eq!(call!(cuInit(0 => u32)), 0);
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut context => &mut Handle, device => i32)), 0);
    assert_eq!(call!(cuCtxSetCurrent(context => Handle)), 0);
    context
}

/// Allocates memory and copies numbers to it.
pub fn upload(numbers: &[f32]) -> u64 {
    let mut address = 0;
    assert_eq!(call!(cuMemAlloc(&mut address => &mut u64, size_of_val(numbers) => usize)), 0);
    assert_eq!(call!(cuMemcpyHtoD(address => u64, numbers.as_ptr() => *const f32, size_of_val(numbers) => usize)), 0);
    address
}

/// Copies numbers from the device.
pub fn download(address: u64, count: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; count];
    assert_eq!(call!(cuMemcpyDtoH(numbers.as_mut_ptr() => *mut f32, address => u64, 4 * count => usize)), 0);
    numbers
}

/// Loads an image, and returns the result code and the kernel of the given name.
pub fn load(image: &[u8], kernel: &str) -> (u32, Handle) {
    let (mut module, mut function) = (null_mut(), null_mut());
    let name = CString::new(kernel).unwrap();
    let code = call!(cuModuleLoadData(&mut module => &mut Handle, image.as_ptr() => *const u8));
    if code == 0 {
        let code =
            call!(cuModuleGetFunction(&mut function => &mut Handle, module => Handle, name.as_ptr() => *const c_char));
        assert_eq!(code, 0);
    }
    (code, function)
}

/// Launches one block. `args` are the addresses of the arguments.
pub fn launch(function: Handle, threads: u32, args: &[*const c_void]) -> u32 {
    call!(cuLaunchKernel(
        function => Handle, 1 => u32, 1 => u32, 1 => u32, threads => u32, 1 => u32, 1 => u32, 0 => u32,
        null_mut() => Handle, args.as_ptr() => *const *const c_void, null_mut() => Handle
    ))
}

/// The address of an argument.
pub fn arg<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}
