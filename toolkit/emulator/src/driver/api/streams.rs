//! Streams and events.

use super::argument::Out;
use super::contexts::PRIORITIES;
use super::functions::functions;
use crate::driver::host_call::{HostFunction, StreamCallback};
use crate::driver::process::{
    Handle, create_in_current, handle, id_in_context_of, with, with_current_stream, with_stream,
};
use crate::driver::queue::StreamOrder;
use crate::driver::result_code::ResultCode;
use crate::driver::work::Work;
use std::ffi::c_void;

/// The flag of a stream that is not ordered with the default stream.
const NON_BLOCKING: u32 = 1;
/// The flag of an event without timing.
const DISABLE_TIMING: u32 = 2;

fn order(flags: u32) -> StreamOrder {
    if flags & NON_BLOCKING == 0 { StreamOrder::Blocking } else { StreamOrder::NonBlocking }
}

functions! { stream_functions($)
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) {
        stream.put(create_in_current(|context| context.create_stream(order(flags), 0))?)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) {
        let priority = priority.clamp(PRIORITIES[0], PRIORITIES[1]);
        stream.put(create_in_current(|context| context.create_stream(order(flags), priority))?)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        with(stream, |context, stream| context.destroy_stream(stream))
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) {
        priority.put(with_stream(stream, |context, stream| {
            Ok(context.streams.get(&stream).map_or(0, |stream| stream.priority))
        })?)
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) {
        flags.put(with_stream(stream, |context, stream| {
            let order = context.streams.get(&stream).map(|stream| stream.order);
            Ok(if order == Some(StreamOrder::NonBlocking) { NON_BLOCKING } else { 0 })
        })?)
    }

    fn cuStreamSynchronize(stream: Handle) {
        with_stream(stream, |context, stream| context.synchronize_stream(stream))
    }

    fn cuStreamQuery(stream: Handle) {
        with_stream(stream, |context, stream| context.query_stream(stream))
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) {
        let Ok(event) = id_in_context_of(stream, event) else {
            // The event is in another context, so execute its work now instead of queueing a wait.
            return with(event, |context, event| context.synchronize_event(event));
        };
        with_stream(stream, |context, stream| context.wait_event(stream, event))
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) {
        let function = function.ok_or(ResultCode::InvalidValue)?;
        let work = Work::Call { function, data: data.expose_provenance() };
        with_current_stream(stream, |context, stream| context.submit(stream, work))
    }

    fn cuEventCreate(event: Out<Handle>, flags: u32) {
        event.put(create_in_current(|context| context.create_event(flags & DISABLE_TIMING == 0))?)
    }

    fn cuEventDestroy_v2(event: Handle) {
        with(event, |context, event| context.destroy_event(event))
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let event = id_in_context_of(stream, event)?;
        with_stream(stream, |context, stream| context.record_event(event, stream))
    }

    fn cuEventSynchronize(event: Handle) {
        with(event, |context, event| context.synchronize_event(event))
    }

    fn cuEventQuery(event: Handle) {
        with(event, |context, event| context.query_event(event))
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        let start = id_in_context_of(end, start)?;
        milliseconds.put(with(end, |context, end| context.elapsed(start, end))?)
    }
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) {
        let event = id_in_context_of(stream, event)?;
        with_stream(stream, |context, stream| context.record_event(event, stream))
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        let start = id_in_context_of(end, start)?;
        milliseconds.put(with(end, |context, end| context.elapsed(start, end))?)
    }

    fn cuStreamAddCallback(stream: Handle, function: Option<StreamCallback>, data: *mut c_void, flags: u32) {
        if flags != 0 {
            return Err(ResultCode::InvalidValue);
        }
        let function = function.ok_or(ResultCode::InvalidValue)?;
        let work = Work::CallBack { function, stream: stream.addr(), data: data.expose_provenance() };
        with_stream(stream, |context, stream| context.submit(stream, work))
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.put(handle(with_stream(stream, |context, _| Ok(context.id))?, 0))
    }

    fn cuStreamGetDevice(stream: Handle, device: Out<i32>) {
        device.put(with_stream(stream, |context, _| Ok(context.ordinal))?)
    }

    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        id.put(with_stream(stream, |context, stream| Ok(handle(context.id, stream).addr() as u64))?)
    }

    fn cuStreamAttachMemAsync(stream: Handle, _pointer: u64, _bytes: usize, _flags: u32) {
        with_stream(stream, |context, _| context.healthy())
    }
}
