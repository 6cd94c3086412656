//! Graphs: work that is recorded once and then launched any number of times with a single call each.

use crate::code::check;
use crate::context::Context;
use crate::error::Result;
use crate::stream::Stream;
use cust::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};
use std::ptr::null_mut;

/// A captured graph, ready to launch.
///
/// Kernel arguments keep the values from the capture. Memory that they point to is read when the graph runs. Buffers
/// must live as long as the graph that uses them.
#[derive(Debug)]
pub struct Graph {
    raw: CUgraphExec,
    context: Context,
}

// SAFETY: graphs are not tied to a thread. The driver wants one launch of a graph at a time, and `Graph` is not `Sync`.
unsafe impl Send for Graph {}

/// Ends a capture when dropped, for example if the captured code panics.
struct Capture<'a>(Option<&'a Stream>);

impl Capture<'_> {
    fn end(&mut self) -> (CUresult, CUgraph) {
        let mut graph = null_mut();
        let Some(stream) = self.0.take() else { return (CUresult::CUDA_SUCCESS, graph) };
        // SAFETY: the stream is alive, and the pointer is valid for the graph.
        (unsafe { sys::cuStreamEndCapture(stream.as_raw(), &mut graph) }, graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let (_, graph) = self.end();
        if !graph.is_null() {
            // SAFETY: nothing else uses the graph.
            unsafe { sys::cuGraphDestroy(graph) };
        }
    }
}

impl Stream {
    /// Records the work that `work` queues in this stream, without executing it. Other streams that wait for an event
    /// of this stream are recorded too. This stream must wait for them before the capture ends.
    ///
    /// During the capture, this thread must not wait for the device, and must not allocate or free device memory.
    ///
    /// # Errors
    /// Returns the error of `work`, or [`Error::Cuda`](crate::Error::Cuda) if it did something that a capture does not
    /// permit.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let context = self.context();
        // SAFETY: the stream is alive.
        context.call("start of a capture", || check(unsafe { sys::cuStreamBeginCapture_v2(self.as_raw(), mode) }))?;
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
            // SAFETY: the graph is alive, and the pointer is valid for the result. No log is requested.
            check(unsafe { sys::cuGraphInstantiate_v2(&mut raw, graph, null_mut(), null_mut(), 0) })
        });
        // SAFETY: the graph is not used after this, and the instantiated graph does not depend on it.
        unsafe { sys::cuGraphDestroy(graph) };
        made.map(|()| Graph { raw, context: context.clone() })
    }
}

impl Graph {
    /// Launches the captured work in a stream.
    ///
    /// # Safety
    /// The requirements of the captured launches and copies must hold: the buffers are alive, and the kernels'
    /// contracts are met.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver call fails.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the graph and the stream are alive. This function's contract allows the captured work to run again.
        self.context.call("launch of a graph", || check(unsafe { sys::cuGraphLaunch(self.raw, stream.as_raw()) }))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is alive and is not used after this.
        let _ = self.context.call("destruction of a graph", || check(unsafe { sys::cuGraphExecDestroy(self.raw) }));
    }
}
