//! Stream capture and graphs.

use super::argument::Out;
use super::functions::functions;
use crate::driver::capture::CaptureMode;
use crate::driver::process::{Handle, handle, id_in_context_of, parts, with, with_current_stream, with_stream};
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::c_char;

/// Capture states of a stream, by CUDA's numbers: not captured, captured, invalidated.
const STATUS: [i32; 3] = [0, 1, 2];
/// Graph update results, by CUDA's numbers: failed, succeeded.
const UPDATE: [u32; 2] = [1, 0];

/// Instantiates a graph.
fn instantiate(ready: Out<Handle>, graph: Handle) -> Result<()> {
    let id = with(graph, |context, graph| {
        context.healthy()?;
        let nodes = context.graph(graph)?;
        Ok(context.add_graph(nodes))
    })?;
    ready.put(handle(parts(graph).0, id))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[repr(C)]
pub struct InstantiateParameters {
    flags: u64,
    upload: Handle,
    node: Handle,
    result: u32,
}

/// `CUgraphExecUpdateResultInfo`
#[repr(C)]
pub struct UpdateResult {
    result: u32,
    node: Handle,
    from: Handle,
}

/// Reports whether a stream is being captured, and the id of the capture.
fn capture_info(stream: Handle, status: Out<i32>, id: Out<u64>) -> Result<()> {
    let capture = with_stream(stream, |context, stream| {
        Ok(context.capture_of(stream).map(|capture| (capture.invalid, capture.id)))
    })?;
    status.put(capture.map_or(STATUS[0], |(invalid, _)| STATUS[if invalid { 2 } else { 1 }]))?;
    if id.is_null() { Ok(()) } else { id.put(capture.map_or(0, |(_, id)| id.into())) }
}

functions! { graph_functions($)
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        let mode = match mode {
            0 => CaptureMode::Global,
            1 => CaptureMode::ThreadLocal,
            2 => CaptureMode::Relaxed,
            _ => return Err(ResultCode::InvalidValue),
        };
        with_stream(stream, |context, stream| context.begin_capture(stream, mode))
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.put(std::ptr::null_mut())?;
        let id = with_stream(stream, |context, stream| context.end_capture(stream))?;
        graph.put(handle(parts(stream).0, id))
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<i32>) {
        let capturing = with_stream(stream, |context, stream| Ok(context.capturing(stream)))?;
        status.put(match capturing {
            None => STATUS[0],
            Some(true) => STATUS[1],
            Some(false) => STATUS[2],
        })
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        if !nodes.is_null() {
            return Err(ResultCode::NotSupported); // graph nodes have no handles in the emulator
        }
        count.put(with(graph, |context, graph| Ok(context.graph(graph)?.len()))?)
    }

    fn cuGraphInstantiate_v2(ready: Out<Handle>, graph: Handle, _node: Out<Handle>, _log: *mut c_char, _room: usize) {
        instantiate(ready, graph)
    }

    fn cuGraphInstantiateWithFlags(ready: Out<Handle>, graph: Handle, _flags: u64) {
        instantiate(ready, graph)
    }

    fn cuGraphInstantiateWithParams(ready: Out<Handle>, graph: Handle, parameters: *mut InstantiateParameters) {
        instantiate(ready, graph)?;
        if !parameters.is_null() {
            // SAFETY: the caller passes null or valid parameters, whose last field receives the result.
            unsafe { (*parameters).result = 0 };
        }
        Ok(())
    }

    fn cuGraphExecUpdate(ready: Handle, graph: Handle, _node: Out<Handle>, result: Out<u32>) {
        let nodes = with(graph, |context, graph| context.graph(graph))?;
        let updated = with(ready, |context, ready| context.update_graph(ready, nodes));
        if !result.is_null() {
            result.put(UPDATE[usize::from(updated.is_ok())])?;
        }
        updated
    }

    fn cuGraphLaunch(ready: Handle, stream: Handle) {
        let ready = id_in_context_of(stream, ready)?;
        with_current_stream(stream, |context, stream| {
            let nodes = context.graph(ready)?;
            nodes.iter().try_for_each(|work| context.submit(stream, work.clone()))
        })
    }

    fn cuGraphExecDestroy(ready: Handle) {
        with(ready, |context, ready| context.destroy_graph(ready))
    }

    fn cuGraphDestroy(graph: Handle) {
        with(graph, |context, graph| context.destroy_graph(graph))
    }
    fn cuGraphExecUpdate_v2(ready: Handle, graph: Handle, result: Out<UpdateResult>) {
        let nodes = with(graph, |context, graph| context.graph(graph))?;
        let updated = with(ready, |context, ready| context.update_graph(ready, nodes));
        if !result.is_null() {
            let none = std::ptr::null_mut();
            result.put(UpdateResult { result: UPDATE[usize::from(updated.is_ok())], node: none, from: none })?;
        }
        updated
    }

    fn cuGraphUpload(ready: Handle, stream: Handle) {
        let ready = id_in_context_of(stream, ready)?;
        with_current_stream(stream, |context, _| context.graph(ready).map(|_| ()))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<i32>, id: Out<u64>, graph: Out<Handle>, dependencies: Out<Handle>, count: Out<usize>,
    ) {
        capture_info(stream, status, id)?;
        // The graph exists only once the capture ends, and its nodes have no handles.
        let none = std::ptr::null_mut();
        [graph, dependencies].into_iter().filter(|out| !out.is_null()).try_for_each(|out| out.put(none))?;
        if count.is_null() { Ok(()) } else { count.put(0) }
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<i32>, id: Out<u64>) {
        capture_info(stream, status, id)
    }
}
