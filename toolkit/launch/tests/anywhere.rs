//! A context on any machine. The test is in a file of its own, because a process chooses its driver only once.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use launch::{Context, DeviceBuffer, Driver};

#[test]
fn there_is_a_context_on_every_machine() {
    let context = Context::new(Driver::anywhere().unwrap(), 0).unwrap();
    assert_eq!(context.is_emulator(), Driver::machine().is_err());
    assert!(std::ptr::eq(Driver::anywhere().unwrap(), context.driver()));
    let stream = context.stream().unwrap();
    let data = DeviceBuffer::from_slice(&stream, &[1u32, 2]).unwrap();
    assert_eq!(data.to_vec(&stream).unwrap(), [1, 2]);
}
