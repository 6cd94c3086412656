//! Work that is recorded once and then done as often as it is asked for, at the cost of one call.

use crate::code::check;
use crate::context::Context;
use crate::error::Result;
use crate::stream::Stream;
use cust::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};
use std::ptr::null_mut;

/// Captured work, ready to run.
///
/// The arguments of kernels are those they were captured with; what the addresses among them point to is read when the
/// graph runs. Buffers must live as long as the graph that uses them.
#[derive(Debug)]
pub struct Graph {
    raw: CUgraphExec,
    context: Context,
}

// SAFETY: graphs belong to no thread; the driver wants one launch at a time, and `launch` only takes a stream's turn.
unsafe impl Send for Graph {}

/// Ends a capture, also if what is captured panics.
struct Capture<'a>(Option<&'a Stream>);

impl Capture<'_> {
    fn end(&mut self) -> (CUresult, CUgraph) {
        let mut graph = null_mut();
        let Some(stream) = self.0.take() else { return (CUresult::CUDA_SUCCESS, graph) };
        // SAFETY: the stream lives, and there is a place for the graph.
        (unsafe { sys::cuStreamEndCapture(stream.as_raw(), &mut graph) }, graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let (_, graph) = self.end();
        if !graph.is_null() {
            // SAFETY: the graph is nobody's.
            unsafe { sys::cuGraphDestroy(graph) };
        }
    }
}

impl Stream {
    /// Records what `work` asks of this stream, instead of doing it. Streams that wait for an event of this one are
    /// recorded, too; this one must wait for them before the end.
    ///
    /// Meanwhile this thread must not wait for the device, and must neither allocate nor free memory.
    ///
    /// # Errors
    /// What `work` fails with; else [`Error::Cuda`](crate::Error::Cuda) if it did what a capture does not permit.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let context = self.context();
        // SAFETY: the stream lives.
        context.call("begin of a capture", || check(unsafe { sys::cuStreamBeginCapture_v2(self.as_raw(), mode) }))?;
        let mut capture = Capture(Some(self));
        work()?;
        let mut graph = null_mut();
        context.call("end of a capture", || {
            let (code, captured) = capture.end();
            graph = captured;
            check(code)
        })?;
        let mut raw = null_mut();
        let made = context.call("instantiation of a graph", || {
            // SAFETY: the graph lives, and there is a place for what becomes of it; no log is asked for.
            check(unsafe { sys::cuGraphInstantiate_v2(&mut raw, graph, null_mut(), null_mut(), 0) })
        });
        // SAFETY: the graph is not used any more: what was instantiated does not depend on it.
        unsafe { sys::cuGraphDestroy(graph) };
        made.map(|()| Graph { raw, context: context.clone() })
    }
}

impl Graph {
    /// Does the captured work in a stream.
    ///
    /// # Safety
    /// What the captured launches and copies ask for holds: buffers live, and kernels' contracts are kept.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream live; that what was captured may be done again is this function's contract.
        self.context.call("launch of a graph", || check(unsafe { sys::cuGraphLaunch(self.raw, stream.as_raw()) }))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph lives, for the last time.
        let _ = self.context.call("end of a graph", || check(unsafe { sys::cuGraphExecDestroy(self.raw) }));
    }
}
