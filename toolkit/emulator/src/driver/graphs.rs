//! Captures and graphs of a context.

use super::capture::{Capture, CaptureMode};
use super::context::DriverContext;
use super::queue::{StreamId, StreamOrder};
use super::result_code::{Result, ResultCode};
use super::work::Work;
use std::sync::Arc;

impl DriverContext {
    pub fn begin_capture(&mut self, stream: StreamId, mode: CaptureMode) -> Result<()> {
        self.healthy()?;
        if self.order(stream)? == StreamOrder::Default {
            return Err(ResultCode::CaptureUnsupported);
        }
        if self.capture_of(stream).is_some() {
            return Err(ResultCode::IllegalState);
        }
        let id = self.id();
        self.captures.push(Capture::begin(id, stream, mode));
        Ok(())
    }

    pub fn end_capture(&mut self, stream: StreamId) -> Result<u32> {
        self.healthy()?;
        let capture = self.captures.iter().position(|capture| capture.has(stream)).ok_or(ResultCode::IllegalState)?;
        if self.captures[capture].origin != stream {
            return Err(ResultCode::CaptureUnmatched);
        }
        let nodes = self.captures.swap_remove(capture).end()?;
        Ok(self.add_graph(nodes.into()))
    }

    pub fn add_graph(&mut self, nodes: Arc<[Work]>) -> u32 {
        let id = self.id();
        self.graphs.insert(id, nodes);
        id
    }

    pub fn graph(&self, graph: u32) -> Result<Arc<[Work]>> {
        self.graphs.get(&graph).cloned().ok_or(ResultCode::InvalidHandle)
    }

    pub fn update_graph(&mut self, graph: u32, nodes: Arc<[Work]>) -> Result<()> {
        let own = self.graph(graph)?;
        if own.len() != nodes.len() || !own.iter().zip(nodes.iter()).all(|(own, other)| own.is_like(other)) {
            return Err(ResultCode::GraphUpdateFailure);
        }
        self.graphs.insert(graph, nodes);
        Ok(())
    }

    pub fn destroy_graph(&mut self, graph: u32) -> Result<()> {
        self.graphs.remove(&graph).map(|_| ()).ok_or(ResultCode::InvalidHandle)
    }
}
