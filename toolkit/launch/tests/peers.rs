//! Several emulated devices: peer memory, and host memory that kernels access in place.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::sync::atomic::Ordering;

use common::device::add;
use common::module;
use cuda_std::launch::{DevicePtrMut, LaunchShape};
use launch::{Context, DeviceBuffer, Driver, Error, MappedBuffer, Stream};

/// Creates contexts on `count` devices, without peer access.
fn contexts(count: u32) -> Vec<Context> {
    let driver = Driver::emulator().unwrap();
    driver.emulate_devices(3).unwrap();
    (0..count).map(|ordinal| Context::new(driver, ordinal).unwrap()).collect()
}

/// Adds 5 to three words with a kernel in `context`.
fn add_five(context: &Context, stream: &Stream, x: DevicePtrMut<u32>) -> Result<(), Error> {
    let module = module(context);
    // SAFETY: the address has three words, or else the emulator reports a fault.
    unsafe { module.launch(stream, LaunchShape::linear(1, 32), add { x, by: 5, n: 3 }) }?;
    stream.synchronize()
}

#[test]
fn the_emulator_has_the_requested_devices() {
    let contexts = contexts(3);
    let driver = contexts[0].driver();
    assert!(driver.num_devices().unwrap() >= 3);
    driver.emulate_devices(2).unwrap();
    assert!(driver.num_devices().unwrap() >= 3, "none is taken away");
    assert!(matches!(Context::new(driver, 99), Err(Error::NoDevice { ordinal: 99, .. })));
}

#[test]
fn kernels_use_the_memory_of_a_peer() {
    let contexts = contexts(2);
    let [own, peer] = [0, 1].map(|i| contexts[i].stream().unwrap());
    let x = DeviceBuffer::from_slice(&peer, &[1u32, 2, 3]).unwrap();
    assert!(contexts[0].can_access_peer(&contexts[1]).unwrap());
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    add_five(&contexts[0], &own, x.as_mut_ptr()).unwrap();
    assert_eq!(x.to_vec(&peer).unwrap(), [6, 7, 8]);
}

#[test]
fn memory_without_peer_access_is_out_of_reach() {
    let contexts = contexts(2);
    let [own, other] = [0, 1].map(|i| contexts[i].stream().unwrap());
    let x = DeviceBuffer::from_slice(&other, &[1u32, 2, 3]).unwrap();
    assert!(matches!(add_five(&contexts[0], &own, x.as_mut_ptr()), Err(Error::Cuda { .. })));
    assert_eq!(x.to_vec(&other).unwrap(), [1, 2, 3]);
}

#[test]
fn host_and_devices_share_mapped_words() {
    let contexts = contexts(2);
    let words = MappedBuffer::zeroed(&contexts[0], 3).unwrap();
    words[1].store(70, Ordering::Relaxed);
    for context in &contexts {
        let stream = context.stream().unwrap();
        add_five(context, &stream, words.address_in(context).unwrap()).unwrap();
    }
    let found: Vec<u32> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(found, [10, 80, 10]);
}
