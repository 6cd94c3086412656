//! Typed launches: shipped kernels give the right results, and wrong launches are refused with a reason.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::device::{add, through_shared};
use common::{PTX, context, module};
use cuda_std::launch::{Descriptor, Kernel, LaunchShape, Param};
use kernels::cache::{copy_blocks, copy_shape, reshape_and_cache, write_shape};
use kernels::layout::{KeyOrValue, KvFormat, Pages};
use launch::{DeviceBuffer, Error, Module};

const SHIPPED: &str = include_str!("../../../kernels/prebuilt/sm_80.ptx");

const PAGES: Pages = Pages { heads: 2, head_size: 32, block_size: 8, format: KvFormat::Plain, padding: 0 };

fn numbers(n: usize) -> Vec<u16> {
    (0..n).map(|i| (i as u16).wrapping_mul(40_503)).collect()
}

#[test]
fn shipped_kernels_write_and_copy_a_cache() {
    let context = context();
    let entries = [&reshape_and_cache::DESCRIPTOR, &copy_blocks::DESCRIPTOR];
    let module = Module::load(&context, SHIPPED, &entries).unwrap();
    let stream = context.stream().unwrap();
    let (blocks, tokens, row) = (3, 5u32, (PAGES.heads * PAGES.head_size) as usize);
    let page = PAGES.page_vectors() as usize * 8;
    let (key, value) = (numbers(tokens as usize * row), numbers(2 * tokens as usize * row).split_off(row));
    let slots = [8i32, 9, -1, 3, 15];

    let buffer = |elements: &[u16]| DeviceBuffer::from_slice(&stream, elements).unwrap();
    let (keys, values) = (buffer(&key), buffer(&value[..key.len()]));
    let cache = DeviceBuffer::<u16>::zeroed(&stream, blocks * page).unwrap().named("cache");
    let slot_buffer = DeviceBuffer::from_slice(&stream, &slots).unwrap();
    let pairs = DeviceBuffer::from_slice(&stream, &[1u32, 2]).unwrap();
    let stride = (row / 8) as u32;
    let write = reshape_and_cache {
        key: keys.as_ptr().cast(),
        value: values.as_ptr().cast(),
        cache: cache.as_mut_ptr().cast(),
        slots: slot_buffer.as_ptr(),
        tokens,
        key_stride: stride,
        value_stride: stride,
        heads: PAGES.heads,
        head_size: PAGES.head_size,
        block_size: PAGES.block_size,
    };
    // SAFETY: the shapes match the buffers, and no two slots are the same.
    unsafe { module.launch(&stream, write_shape(PAGES, tokens), write) }.unwrap();
    let copy = copy_blocks {
        cache: cache.as_mut_ptr().cast(),
        pairs: pairs.as_ptr(),
        page_vectors: PAGES.page_vectors(),
        layer_stride: 0,
    };
    // SAFETY: blocks 1 and 2 are in the cache.
    unsafe { module.launch(&stream, copy_shape(PAGES.page_vectors(), 1, 1), copy) }.unwrap();

    let mut want = vec![0; blocks * page];
    for (token, &slot) in slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
        let (block, offset) = (slot as u32 / PAGES.block_size, slot as u32 % PAGES.block_size);
        for element in 0..row {
            let (head, e) = (element as u32 / PAGES.head_size, element as u32 % PAGES.head_size);
            want[PAGES.element(block, head, KeyOrValue::Key, e, offset)] = key[token * row + element];
            want[PAGES.element(block, head, KeyOrValue::Value, e, offset)] = value[token * row + element];
        }
    }
    want.copy_within(page..2 * page, 2 * page);
    assert!(cache.to_vec(&stream).unwrap() == want);
}

#[test]
fn a_module_has_the_kernels_it_was_loaded_for() {
    let context = context();
    let stream = context.stream().unwrap();
    let module = Module::load(&context, PTX, &[&add::DESCRIPTOR]).unwrap();
    let x = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    let call = through_shared { x: x.as_mut_ptr(), value: 1, size: 4 };
    // SAFETY: the launch is refused.
    let refused = unsafe { module.launch(&stream, LaunchShape::linear(1, 1).with_shared(4), call) }.unwrap_err();
    assert!(matches!(refused, Error::NotLoaded("through_shared")), "{refused}");

    let missing = Module::load(&context, SHIPPED, &[&add::DESCRIPTOR]).unwrap_err();
    assert_eq!(missing.to_string(), "the PTX has no kernel `add`");
}

#[test]
fn another_signature_is_refused_at_load() {
    static OTHER: Descriptor = Descriptor {
        params: &[Param { name: "x", ty: "*mut u32", size: 8 }, Param { name: "by", ty: "u64", size: 8 }],
        ..add::DESCRIPTOR
    };
    let refused = Module::load(&context(), PTX, &[&OTHER]).unwrap_err();
    assert_eq!(refused.to_string(), "`add` takes parameters of [8, 4, 4] bytes in the PTX and of [8, 8] on the host");
}

#[test]
fn impossible_shapes_are_refused_and_do_no_harm() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    let launch = |grid: [u32; 3], threads: [u32; 3], shared| {
        let shape = LaunchShape::new(grid, 1).with_threads(threads).with_shared(shared);
        // SAFETY: the kernel uses only one element.
        unsafe { module.launch(&stream, shape, add { x: x.as_mut_ptr(), by: 1, n: 1 }) }
    };
    for grid in [[0, 1, 1], [1, 65_536, 1], [1, 1, 65_536], [1, 0, 1], [u32::MAX, 1, 1]] {
        assert!(matches!(launch(grid, [1; 3], 0), Err(Error::Grid { entry: "add", .. })), "{grid:?}");
    }
    for block in [[0, 1, 1], [257, 1, 1], [16, 17, 1], [1, 1, 65], [65_536, 65_536, 1]] {
        assert!(matches!(launch([1; 3], block, 0), Err(Error::Block { threads: 256, .. })), "{block:?}");
    }
    for shared in [context.limits().shared_opt_in as u32 + 1, u32::MAX] {
        assert!(matches!(launch([1; 3], [1; 3], shared), Err(Error::SharedMemory { .. })), "{shared}");
    }
    launch([1; 3], [256, 1, 1], 0).unwrap();
    assert_eq!(x.to_vec(&stream).unwrap(), [2]);
}

#[test]
fn a_block_can_have_all_the_shared_memory_of_the_device() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let limits = context.limits();
    let x = DeviceBuffer::from_slice(&stream, &[0u32]).unwrap();
    for (size, value) in [(limits.shared, 3), (limits.shared + 4, 4), (limits.shared_opt_in, 5), (64, 6)] {
        let size = size as u32;
        let call = through_shared { x: x.as_mut_ptr(), value, size };
        // SAFETY: `x` has an element, and the block has `size` bytes of shared memory.
        unsafe { module.launch(&stream, LaunchShape::linear(1, 1).with_shared(size), call) }.unwrap();
        assert_eq!(x.to_vec(&stream).unwrap(), [value]);
    }
}

#[test]
fn occupancy_falls_with_shared_memory() {
    let context = context();
    let module = module(&context);
    let blocks = |threads, shared| module.occupancy(&through_shared::DESCRIPTOR, threads, shared).unwrap();
    assert!(blocks(1024, 0) >= 1);
    assert_eq!(blocks(32, context.limits().shared_opt_in), 1);
    assert!(blocks(32, 16 << 10) > 1);
}

#[test]
fn a_compile_error_is_explained() {
    let broken = PTX.replace("add.u64 %rd1, %rd1, %rd2;", "add.u64 %rd1, %rd1, %nothing;");
    let error = Module::load(&context(), &broken, &[&add::DESCRIPTOR]).unwrap_err();
    let Error::Cuda { code, detail, .. } = &error else { panic!("{error}") };
    assert_eq!(code.name(), "CUDA_ERROR_INVALID_PTX");
    assert!(detail.as_ref().is_some_and(|text| text.contains("nothing")), "{error}");
}

#[test]
fn a_missing_device_is_an_error() {
    let error = launch::Context::new(context().driver(), 1000).unwrap_err();
    assert!(matches!(error, Error::NoDevice { ordinal: 1000, .. }), "{error}");
}

#[test]
fn too_much_memory_is_an_error() {
    let context = context();
    let (free, total) = context.memory().unwrap();
    assert!(free <= total && total > 0);
    let error = DeviceBuffer::<u8>::uninit(&context, 1 << 50).unwrap_err().to_string();
    assert!(error.contains("1125899906842624 bytes") && error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    let kept = DeviceBuffer::<u8>::uninit(&context, 1 << 20).unwrap();
    drop(kept);
    DeviceBuffer::<u32>::uninit(&context, 0).unwrap();
}
