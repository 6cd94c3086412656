//! Streams, events, pinned memory and threads.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::device::add;
use common::{context, module};
use cuda_std::launch::LaunchShape;
use launch::{Context, DeviceBuffer, Error, Event, Module, PinnedBuffer, Stream};

/// Adds `by` to all elements of a buffer.
fn launch_add(module: &Module, stream: &Stream, x: &DeviceBuffer<u32>, by: u32) {
    let call = add { x: x.as_mut_ptr(), by, n: x.len() as u32 };
    // SAFETY: the length is that of the buffer.
    unsafe { module.launch(stream, LaunchShape::linear(1, 32), call) }.unwrap();
}

#[test]
fn a_stream_works_in_order() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32, 2]).unwrap();
    launch_add(&module, &stream, &x, 5);
    assert_eq!(x.to_vec(&stream).unwrap(), [6, 7]);
    stream.upload(&[10, 20], &x).unwrap();
    launch_add(&module, &stream, &x, 1);
    launch_add(&module, &stream, &x, 2);
    assert_eq!(x.to_vec(&stream).unwrap(), [13, 23]);
    stream.clear(&x).unwrap();
    assert_eq!(x.to_vec(&stream).unwrap(), [0, 0]);
    stream.upload(&[5], x.slice(1..2)).unwrap();
    stream.copy_within_device(x.slice(1..2), x.slice(0..1)).unwrap();
    launch_add(&module, &stream, &x, 1);
    let mut last = [0];
    stream.download(x.slice(0..1), &mut last).unwrap();
    assert_eq!((last, x.to_vec(&stream).unwrap()), ([6], vec![6, 6]));
    stream.clear(x.slice(0..1)).unwrap();
    assert_eq!(x.to_vec(&stream).unwrap(), [0, 6]);
    let wrong = stream.upload(&[1], &x).unwrap_err();
    assert!(matches!(wrong, Error::Length { from: 1, to: 2 }), "{wrong}");
}

#[test]
fn pinned_copies_run_in_stream_order() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::<u32>::zeroed(&stream, 2).unwrap();
    let mut from = PinnedBuffer::from_slice(&context, &[1u32, 2]).unwrap();
    let to = PinnedBuffer::<u32>::zeroed(&context, 2).unwrap();
    // SAFETY: the buffers outlive the work. Writing to `from` meanwhile is intended.
    unsafe {
        stream.upload_async(&from, &x).unwrap();
        launch_add(&module, &stream, &x, 10);
        stream.download_async(&x, &to).unwrap();
    }
    if context.is_emulator() {
        assert_eq!(to[..], [0, 0], "nobody waited");
        from.copy_from_slice(&[3, 4]);
        stream.synchronize().unwrap();
        assert_eq!(to[..], [13, 14], "the copy read its source too early");
    } else {
        stream.synchronize().unwrap();
        assert_eq!(to[..], [11, 12]);
    }
}

#[test]
fn streams_wait_for_events_only() {
    let context = context();
    let module = module(&context);
    let (first, second) = (context.stream().unwrap(), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&first, &[1u32]).unwrap();
    let to = PinnedBuffer::<u32>::zeroed(&context, 1).unwrap();
    if context.is_emulator() {
        launch_add(&module, &first, &x, 1);
        // SAFETY: the buffers outlive the copy. The race with the kernel is intended.
        unsafe { second.download_async(&x, &to) }.unwrap();
        second.synchronize().unwrap();
        assert_eq!(to[..], [1], "the second stream waited for the first");
        first.synchronize().unwrap();
    } else {
        launch_add(&module, &first, &x, 1);
    }
    launch_add(&module, &first, &x, 1);
    let event = Event::new(&context).unwrap();
    event.record(&first).unwrap();
    second.wait(&event).unwrap();
    // SAFETY: the buffers outlive the copy.
    unsafe { second.download_async(&x, &to) }.unwrap();
    second.synchronize().unwrap();
    assert_eq!(to[..], [3]);
    let short = PinnedBuffer::<u32>::zeroed(&context, 0).unwrap();
    // SAFETY: the copy is refused.
    let refused = unsafe { second.download_async(&x, &short) }.unwrap_err();
    assert!(matches!(refused, Error::Length { from: 1, to: 0 }), "{refused}");
}

#[test]
fn events_report_progress_and_durations() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    let (start, end) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    assert!(end.is_reached().unwrap(), "an event that was never recorded is nothing to wait for");
    start.record(&stream).unwrap();
    launch_add(&module, &stream, &x, 1);
    end.record(&stream).unwrap();
    if context.is_emulator() {
        assert!(!end.is_reached().unwrap(), "nobody waited, but now time has passed");
        assert!(end.is_reached().unwrap());
    }
    end.synchronize().unwrap();
    assert!(stream.is_idle().unwrap());
    end.since(&start).unwrap();
    launch_add(&module, &stream, &x, 1);
    if context.is_emulator() {
        assert!(!stream.is_idle().unwrap());
    }
    context.synchronize().unwrap();
    assert!(stream.is_idle().unwrap());
    let unrecorded = Event::new(&context).unwrap();
    let error = end.since(&unrecorded).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_INVALID_HANDLE"), "{error}");
}

#[test]
fn any_thread_may_use_a_context() {
    let context = context();
    let other = common::context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32, 2]).unwrap();
    let sum = std::thread::spawn(move || {
        other.make_current().unwrap();
        launch_add(&module, &stream, &x, 1);
        x.to_vec(&stream).unwrap().iter().sum::<u32>()
    });
    assert_eq!(sum.join().unwrap(), 5);
    let stream = context.stream().unwrap();
    assert_eq!(DeviceBuffer::from_slice(&stream, &[7u32]).unwrap().to_vec(&stream).unwrap(), [7]);
}

#[test]
fn cust_works_alongside() {
    use launch::cust::memory::{CopyDestination, DeviceBuffer};
    let context: Context = context();
    context.make_current().unwrap();
    let stream = context.stream().unwrap();
    let mut buffer = DeviceBuffer::from_slice(&[1u16, 2, 3]).unwrap();
    let mut back = [0; 3];
    buffer.copy_to(&mut back).unwrap();
    assert_eq!(back, [1, 2, 3]);
    buffer.set_16(9).unwrap();
    buffer.copy_to(&mut back).unwrap();
    assert_eq!(back, [9; 3]);
    let (send, receive) = std::sync::mpsc::channel();
    let callback = move || {
        // A host function must not call the driver. The emulator refuses such calls.
        send.send(launch::cust::memory::mem_get_info().err()).unwrap();
    };
    stream.as_cust().add_callback(Box::new(callback)).unwrap();
    stream.synchronize().unwrap();
    let answer = receive.try_recv().unwrap();
    assert!(!context.is_emulator() || answer == Some(launch::cust::error::CudaError::NotPermitted), "{answer:?}");
}

#[test]
fn the_primary_context_lives_while_it_is_retained() {
    use launch::cust::context::Context as Primary;
    use launch::cust::context::legacy::CurrentContext;
    use launch::cust::device::Device;
    use launch::cust::memory::{CopyDestination, DeviceBox};
    drop(context()); // chooses and initialises the driver
    let primary = Primary::new(Device::get_device(0).unwrap()).unwrap();
    let again = primary.clone();
    drop(primary);
    let number = DeviceBox::new(&5u32).unwrap();
    let mut back = 0;
    number.copy_to(&mut back).unwrap();
    assert_eq!(back, 5);
    CurrentContext::synchronize().unwrap();
    drop(number);
    drop(again);
    assert!(DeviceBox::new(&5u32).is_err());
}
