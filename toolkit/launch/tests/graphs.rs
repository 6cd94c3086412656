//! Graphs: captured once, and launched with the current contents of the buffers.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::device::add;
use common::{context, module};
use cuda_std::launch::LaunchShape;
use launch::{DeviceBuffer, Event, PinnedBuffer};

#[test]
fn a_graph_reads_the_current_buffer_contents() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let mut input = PinnedBuffer::from_slice(&context, &[1u32, 2]).unwrap();
    let output = PinnedBuffer::<u32>::zeroed(&context, 2).unwrap();
    let x = DeviceBuffer::<u32>::zeroed(&stream, 2).unwrap();
    let graph = stream
        .capture(|| {
            // SAFETY: the buffers outlive the graph.
            unsafe {
                stream.upload_async(&input, &x)?;
                module.launch(&stream, LaunchShape::linear(1, 32), add { x: x.as_mut_ptr(), by: 10, n: 2 })?;
                stream.download_async(&x, &output)
            }
        })
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!((&output[..], &x.to_vec(&stream).unwrap()[..]), (&[0, 0][..], &[0, 0][..]), "captured, not done");
    for step in 0..3 {
        input.copy_from_slice(&[step, 100 * step]);
        // SAFETY: the buffers are alive and not used until the stream is synchronized.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        assert_eq!(output[..], [step + 10, 100 * step + 10]);
    }
}

#[test]
fn a_capture_may_fork_and_must_join() {
    let context = context();
    let module = module(&context);
    let (stream, side) = (context.stream().unwrap(), context.stream().unwrap());
    let (forked, joined) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[0u32]).unwrap();
    let y = DeviceBuffer::from_slice(&stream, &[0u32]).unwrap();
    let step = |stream: &launch::Stream, x: &DeviceBuffer<u32>, by| {
        // SAFETY: the buffer has one element.
        unsafe { module.launch(stream, LaunchShape::linear(1, 1), add { x: x.as_mut_ptr(), by, n: 1 }) }
    };
    let capture = |join: bool| {
        stream.capture(|| {
            step(&stream, &x, 1)?;
            forked.record(&stream)?;
            side.wait(&forked)?;
            step(&side, &y, 2)?;
            joined.record(&side)?;
            if join { stream.wait(&joined) } else { Ok(()) }
        })
    };
    let error = capture(false).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNJOINED"), "{error}");
    let graph = capture(true).unwrap();
    for times in 1..3 {
        // SAFETY: the buffers are alive.
        unsafe { graph.launch(&stream) }.unwrap();
        assert_eq!(x.to_vec(&stream).unwrap(), [times]);
        assert_eq!(y.to_vec(&stream).unwrap(), [2 * times]);
    }
}

#[test]
fn a_forbidden_call_ends_only_the_capture() {
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let x = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    let step = || {
        // SAFETY: the buffer has one element.
        unsafe { module.launch(&stream, LaunchShape::linear(1, 1), add { x: x.as_mut_ptr(), by: 1, n: 1 }) }
    };
    let waits = stream.capture(|| {
        step()?;
        stream.synchronize()
    });
    let error = waits.unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{error}");

    let ignores = stream.capture(|| {
        assert!(stream.synchronize().is_err());
        step().unwrap_err();
        Ok(())
    });
    let error = ignores.unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"), "{error}");

    step().unwrap();
    assert_eq!(x.to_vec(&stream).unwrap(), [2], "nothing of the captures was done");
}

#[test]
fn a_panic_ends_a_capture() {
    let context = context();
    let stream = context.stream().unwrap();
    let panics = std::panic::AssertUnwindSafe(|| stream.capture(|| panic!("on purpose")));
    assert!(std::panic::catch_unwind(panics).is_err());
    let x = DeviceBuffer::from_slice(&stream, &[1u32]).unwrap();
    assert_eq!(x.to_vec(&stream).unwrap(), [1]);
}

#[test]
fn a_graph_update_may_change_only_arguments() {
    use launch::cust::sys;
    use std::ptr::null_mut;
    let context = context();
    let (module, stream) = (module(&context), context.stream().unwrap());
    let raw = stream.as_cust().as_inner();
    let x = DeviceBuffer::from_slice(&stream, &[0u32]).unwrap();
    let capture = |by: &[u32]| {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let mut graph = null_mut();
        // SAFETY: the stream is alive, and the pointer is valid for the graph.
        assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(raw, mode) }, sys::CUresult::CUDA_SUCCESS);
        for &by in by {
            // SAFETY: the buffer has one element.
            unsafe { module.launch(&stream, LaunchShape::linear(1, 1), add { x: x.as_mut_ptr(), by, n: 1 }) }.unwrap();
        }
        // SAFETY: as above.
        assert_eq!(unsafe { sys::cuStreamEndCapture(raw, &mut graph) }, sys::CUresult::CUDA_SUCCESS);
        graph
    };
    let (one, other, two) = (capture(&[1]), capture(&[100]), capture(&[1, 2]));
    let mut count = 0;
    let mut ready = null_mut();
    let mut updated = sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR;
    let mut node = null_mut();
    // SAFETY: all graphs live until they are destroyed here, and the buffer outlives them.
    unsafe {
        assert_eq!(sys::cuGraphGetNodes(two, null_mut(), &mut count), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuGraphInstantiate_v2(&mut ready, one, null_mut(), null_mut(), 0), sys::CUresult::CUDA_SUCCESS);
        let refused = sys::cuGraphExecUpdate(ready, two, &mut node, &mut updated);
        assert_eq!(refused, sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        assert_eq!(sys::cuGraphExecUpdate(ready, other, &mut node, &mut updated), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuGraphLaunch(ready, raw), sys::CUresult::CUDA_SUCCESS);
        for graph in [one, other, two] {
            assert_eq!(sys::cuGraphDestroy(graph), sys::CUresult::CUDA_SUCCESS);
        }
        assert_eq!(sys::cuGraphExecDestroy(ready), sys::CUresult::CUDA_SUCCESS);
    }
    assert_eq!(updated, sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS);
    assert_eq!((count, x.to_vec(&stream).unwrap()), (2, vec![100]));
}
