//! Typical programs: kernels from PTX, fatbins and links, memory from pools, libraries, and 2D copies.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[macro_use]
mod common;

use common::*;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};

/// The kernels of the lessons. The first lesson's `saxpy` computes `y = a * x + y`.
const LESSONS: &str = include_str!("../../../examples/prebuilt/sm_80.ptx");

/// Runs a kernel `add` with two buffers and a length, and checks the result.
fn assert_adds(function: Handle) {
    let (a, b) = (upload(&[1.0, 2.0, 3.0]), upload(&[10.0, 20.0, 30.0]));
    assert_eq!(launch(function, 32, &[arg(&a), arg(&b), arg(&3i32)]), 0);
    assert_eq!(download(a, 3), [11.0, 22.0, 33.0]);
    for address in [a, b] {
        assert_eq!(call!(cuMemFree(address => u64)), 0);
    }
}

#[test]
fn kernels_from_ptx_run() {
    enter(0);
    let (code, saxpy) = load(CString::new(LESSONS).unwrap().as_bytes_with_nul(), "saxpy");
    assert_eq!(code, 0);
    let (x, y) = (upload(&[1.0, 2.0]), upload(&[10.0, 20.0]));
    assert_eq!(launch(saxpy, 256, &[arg(&3.0f32), arg(&x), arg(&y), arg(&2u32)]), 0);
    assert_eq!(download(y, 2), [13.0, 26.0]);
}

#[test]
fn arguments_may_be_in_one_buffer() {
    enter(0);
    let (_, saxpy) = load(CString::new(LESSONS).unwrap().as_bytes_with_nul(), "saxpy");
    let (x, y) = (upload(&[1.0, 2.0]), upload(&[10.0, 20.0]));
    let mut buffer = [0u8; 28];
    buffer[..4].copy_from_slice(&2.0f32.to_le_bytes());
    buffer[8..16].copy_from_slice(&x.to_le_bytes());
    buffer[16..24].copy_from_slice(&y.to_le_bytes());
    buffer[24..].copy_from_slice(&2u32.to_le_bytes());
    let size = buffer.len();
    let extra: [*const c_void; 5] =
        [std::ptr::without_provenance(1), arg(&buffer), std::ptr::without_provenance(2), arg(&size), null()];
    assert_eq!(
        call!(cuLaunchKernel(
            saxpy => Handle, 1 => u32, 1 => u32, 1 => u32, 256 => u32, 1 => u32, 1 => u32, 0 => u32,
            null_mut() => Handle, null() => *const c_void, extra.as_ptr() => *const *const c_void
        )),
        0
    );
    assert_eq!(download(y, 2), [12.0, 24.0]);
}

#[test]
fn fatbins_are_read_however_they_are_compressed() {
    enter(0);
    let fatbins = [
        include_bytes!("compiled/plain.fatbin").as_slice(),
        include_bytes!("compiled/lz4.fatbin"),
        include_bytes!("compiled/zstd.fatbin"),
    ];
    for fatbin in fatbins {
        let (code, add) = load(fatbin, "add");
        assert_eq!(code, 0);
        assert_adds(add);
    }
}

#[test]
fn machine_code_is_refused() {
    enter(0);
    const NO_BINARY: u32 = 209;
    assert_eq!(load(include_bytes!("compiled/sass.fatbin"), "add").0, NO_BINARY);
    assert_eq!(load(b"\x7fELF", "add").0, NO_BINARY);
}

#[test]
fn a_truncated_fatbin_is_refused() {
    enter(0);
    const INVALID_IMAGE: u32 = 200;
    let whole = include_bytes!("compiled/zstd.fatbin");
    // The header gives a smaller size than the entry needs.
    let mut cut = whole.to_vec();
    cut[8..16].copy_from_slice(&100u64.to_le_bytes());
    assert_eq!(load(&cut, "add").0, INVALID_IMAGE);
}

#[test]
fn linked_code_can_be_loaded() {
    enter(0);
    let called = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .func (.param .b32 r) thrice(.param .b32 x)\n{\n.reg .f32 %f<3>;\n\
        ld.param.f32 %f1, [x];\nadd.f32 %f2, %f1, %f1;\nadd.f32 %f2, %f2, %f1;\nst.param.f32 [r], %f2;\nret;\n}\n\0";
    let kernel = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .extern .func (.param .b32 r) thrice(.param .b32 x);\n\
        .visible .entry k(.param .u64 data)\n{\n.reg .f32 %f<3>;\n.reg .b64 %rd<2>;\n\
        ld.param.u64 %rd1, [data];\nld.global.f32 %f1, [%rd1];\n{\n.param .b32 a;\n.param .b32 b;\n\
        st.param.f32 [a], %f1;\ncall (b), thrice, (a);\nld.param.f32 %f2, [b];\n}\nst.global.f32 [%rd1], %f2;\nret;\n}\n\0";
    let (mut state, mut cubin, mut size) = (null_mut(), null_mut::<u8>(), 0);
    assert_eq!(
        call!(cuLinkCreate(0 => u32, null() => *const u32, null() => *const Handle, &mut state => &mut Handle)),
        0
    );
    let add = |kind: u32, bytes: &[u8]| {
        call!(cuLinkAddData(
            state => Handle, kind => u32, bytes.as_ptr() => *const u8, bytes.len() => usize, null() => *const c_char,
            0 => u32, null() => *const u32, null() => *const Handle
        ))
    };
    let [ptx, fatbin, object] = [1, 2, 3];
    assert_eq!(add(ptx, kernel.as_bytes()), 0);
    assert_eq!(add(ptx, called.as_bytes()), 0);
    assert_eq!(add(fatbin, include_bytes!("compiled/lz4.fatbin")), 0);
    assert_eq!(add(object, b"\x7fELF"), 209);
    assert_eq!(call!(cuLinkComplete(state => Handle, &mut cubin => &mut *mut u8, &mut size => &mut usize)), 0);
    // SAFETY: a link result has this many bytes and lives until the link is destroyed.
    let linked = unsafe { std::slice::from_raw_parts(cubin, size) }.to_vec();
    assert_eq!(call!(cuLinkDestroy(state => Handle)), 0);
    let (code, k) = load(&linked, "k");
    assert_eq!(code, 0);
    let data = upload(&[5.0]);
    assert_eq!(launch(k, 1, &[arg(&data)]), 0);
    assert_eq!(download(data, 1), [15.0]);
    assert_adds(load(&linked, "add").1);
}

#[test]
fn pool_memory_is_freed_in_stream_order() {
    enter(0);
    let (mut pool, mut stream, mut memory) = (null_mut(), null_mut(), 0u64);
    assert_eq!(call!(cuDeviceGetDefaultMemPool(&mut pool => &mut Handle, 0 => i32)), 0);
    assert_eq!(call!(cuStreamCreate(&mut stream => &mut Handle, 1 => u32)), 0);
    let used = || {
        let mut bytes = 0u64;
        assert_eq!(call!(cuMemPoolGetAttribute(pool => Handle, 7 => u32, &mut bytes => &mut u64)), 0);
        bytes
    };
    assert_eq!(call!(cuMemAllocAsync(&mut memory => &mut u64, 64 => usize, stream => Handle)), 0);
    assert_eq!(used(), 64);
    let mut result = [0u8; 64];
    assert_eq!(call!(cuMemsetD8Async(memory => u64, 7 => u8, 64 => usize, stream => Handle)), 0);
    let code = call!(cuMemcpyDtoHAsync(result.as_mut_ptr() => *mut u8, memory => u64, 64 => usize, stream => Handle));
    assert_eq!((code, result), (0, [7; 64]));
    assert_eq!(call!(cuMemFreeAsync(memory => u64, stream => Handle)), 0);
    assert_eq!(used(), 64, "the stream has not come to it");
    assert_eq!(call!(cuStreamSynchronize(stream => Handle)), 0);
    assert_eq!(used(), 0);
    assert_eq!(call!(cuMemFreeAsync(memory => u64, stream => Handle)), 1);
}

#[test]
fn a_library_serves_every_context() {
    let (mut library, mut kernel, mut name) = (null_mut(), null_mut(), null());
    enter(0);
    let none = null::<c_void>();
    let code = call!(cuLibraryLoadData(
        &mut library => &mut Handle, include_bytes!("compiled/zstd.fatbin").as_ptr() => *const u8, none => *const c_void,
        none => *const c_void, 0 => u32, none => *const c_void, none => *const c_void, 0 => u32
    ));
    assert_eq!(code, 0);
    let code =
        call!(cuLibraryGetKernel(&mut kernel => &mut Handle, library => Handle, c"add".as_ptr() => *const c_char));
    assert_eq!(code, 0);
    assert_eq!(call!(cuKernelGetName(&mut name => &mut *const c_char, kernel => Handle)), 0);
    // SAFETY: the name lives as long as the library.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"add");
    assert_adds(kernel);
    let mut other = null_mut();
    assert_eq!(call!(cuCtxCreate(&mut other => &mut Handle, null() => *const c_void, 0 => u32, 0 => i32)), 0);
    assert_adds(kernel);
    assert_eq!(call!(cuCtxDestroy(other => Handle)), 0);
    enter(0);
    assert_adds(kernel);
    assert_eq!(call!(cuLibraryUnload(library => Handle)), 0);
    assert_eq!(launch(kernel, 32, &[]), 400);
}

#[test]
fn rows_are_copied_and_filled() {
    #[repr(C)]
    struct Side(usize, usize, u32, *const c_void, u64, usize, usize);
    #[repr(C)]
    struct Copy(Side, Side, usize, usize);
    enter(0);
    let (mut rows, mut pitch) = (0u64, 0usize);
    let code =
        call!(cuMemAllocPitch(&mut rows => &mut u64, &mut pitch => &mut usize, 12 => usize, 3 => usize, 4 => u32));
    assert_eq!((code, pitch), (0, 512));
    let fill = call!(cuMemsetD2D32(rows => u64, pitch => usize, 9 => u32, 3 => usize, 3 => usize));
    assert_eq!(fill, 0);
    // Copy two columns of two rows, to the second column and row.
    let host = [1u32, 2, 3, 4];
    let from = Side(0, 0, 1, host.as_ptr().cast(), 0, 0, 8);
    let copy = Copy(from, Side(4, 1, 2, null(), rows, 0, pitch), 8, 2);
    assert_eq!(call!(cuMemcpy2D(&copy => *const Copy)), 0);
    let mut back = [0u32; 9];
    let copy = Copy(Side(0, 0, 2, null(), rows, 0, pitch), Side(0, 0, 1, back.as_mut_ptr().cast(), 0, 0, 12), 12, 3);
    assert_eq!(call!(cuMemcpy2D(&copy => *const Copy)), 0);
    assert_eq!(back, [9, 9, 9, 9, 1, 2, 9, 3, 4]);
}

#[test]
fn empty_copies_accept_any_address() {
    enter(0);
    let null_copy = call!(cuMemcpyHtoD(0 => u64, null() => *const c_void, 0 => usize));
    assert_eq!((null_copy, call!(cuMemsetD8(0 => u64, 0 => u8, 0 => usize))), (0, 0));
    assert_eq!(call!(cuMemcpyHtoD(0 => u64, arg(&1u8) => *const c_void, 1 => usize)), 1);
}

#[test]
fn managed_memory_is_the_same_for_host_and_kernels() {
    enter(0);
    let mut memory = 0u64;
    assert_eq!(call!(cuMemAllocManaged(&mut memory => &mut u64, 12 => usize, 1 => u32)), 0);
    // SAFETY: the host may access managed memory, and no kernel is running.
    let numbers =
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<f32>(memory as usize), 3) };
    numbers.copy_from_slice(&[1.0, 2.0, 3.0]);
    let other = upload(&[4.0, 5.0, 6.0]);
    let (_, add) = load(include_bytes!("compiled/lz4.fatbin"), "add");
    assert_eq!(launch(add, 32, &[arg(&memory), arg(&other), arg(&3i32)]), 0);
    assert_eq!(call!(cuCtxSynchronize()), 0);
    assert_eq!(numbers, [5.0, 7.0, 9.0]);
    assert_eq!(download(memory, 3), [5.0, 7.0, 9.0]);
    let (mut managed, mut kind) = (0u8, 0u32);
    assert_eq!(call!(cuPointerGetAttribute(&mut managed => &mut u8, 8 => u32, memory => u64)), 0);
    assert_eq!(call!(cuPointerGetAttribute(&mut kind => &mut u32, 2 => u32, other + 4 => u64)), 0);
    assert_eq!((managed, kind), (1, 2));
    assert_eq!(call!(cuMemFree(memory => u64)), 0);
}

#[test]
fn a_block_that_fills_the_device_is_found() {
    enter(0);
    let (_, saxpy) = load(CString::new(LESSONS).unwrap().as_bytes_with_nul(), "saxpy");
    let (mut grid, mut block) = (0, 0);
    let code = call!(cuOccupancyMaxPotentialBlockSize(
        &mut grid => &mut i32, &mut block => &mut i32, saxpy => Handle, null() => *const c_void, 0 => usize, 0 => i32
    ));
    assert_eq!((code, grid, block), (0, 16 * 8, 256));
    // All blocks of a cooperative launch must be resident at once.
    let cooperative = |blocks: u32| {
        call!(cuLaunchCooperativeKernel(
            saxpy => Handle, blocks => u32, 1 => u32, 1 => u32, 256 => u32, 1 => u32, 1 => u32, 0 => u32,
            null_mut() => Handle, [arg(&1.0f32), arg(&0u64), arg(&0u64), arg(&0u32)].as_ptr() => *const *const c_void
        ))
    };
    assert_eq!((cooperative(128), cooperative(129)), (0, 720));
    assert_eq!(call!(cuCtxSynchronize()), 0);
}

#[test]
fn unsupported_functions_are_not_found() {
    assert!(find("cuTexObjectCreate").is_none());
    let (mut table, id) = (arg(&0u8), [0u8; 16]);
    assert_eq!(call!(cuGetExportTable(&mut table => &mut *const c_void, &id => *const [u8; 16])), 500);
    assert!(table.is_null());
}

#[test]
fn every_function_of_the_emulator_is_exported() {
    macro_rules! assert_exported {
        ($($name:ident)*) => {$({
            let name = stringify!($name);
            // SAFETY: the test only looks the function up and does not call it.
            let exported = unsafe { library().get::<unsafe extern "C" fn()>(name.as_bytes()) };
            assert!(exported.is_ok() && emulator::driver::symbol(name).is_some(), "{name}");
        })*};
    }
    emulator::driver_functions!(assert_exported);
}
