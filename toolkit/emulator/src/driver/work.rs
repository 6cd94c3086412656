//! The work that a stream can execute.

use super::host_call::{HostFunction, StreamCallback};
use crate::arg::Arg;
use crate::host_bytes::HostBytes;
use crate::memory::DeviceAddress;
use crate::module::PtxModule;
use std::sync::Arc;

/// The source of a copy to the device.
#[derive(Clone, Debug)]
pub(super) enum UploadSource {
    /// Pageable memory: the bytes were read when the copy was submitted.
    Staged(Arc<[u8]>),
    /// Page-locked memory: the bytes are read when the copy executes.
    Pinned(HostBytes),
}

/// A submitted launch.
#[derive(Clone, Debug)]
pub(super) struct LaunchRequest {
    pub module: Arc<PtxModule>,
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: usize,
    /// The cluster shape in blocks, if the launch has the attribute.
    pub cluster: Option<[u32; 3]>,
    /// Whether the launch may begin before the previous launch ends.
    pub dependent: bool,
    pub args: Vec<Arg>,
}

/// A piece of stream work.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Launch(LaunchRequest),
    Upload {
        to: DeviceAddress,
        from: UploadSource,
    },
    Download {
        from: DeviceAddress,
        to: HostBytes,
    },
    Copy {
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: usize,
    },
    /// A copy from the memory of one context to another of its group, given by context id and address.
    PeerCopy {
        to: (u32, DeviceAddress),
        from: (u32, DeviceAddress),
        bytes: usize,
    },
    Free {
        at: DeviceAddress,
    },
    Fill {
        at: DeviceAddress,
        pattern: Vec<u8>,
        count: usize,
    },
    Record {
        event: u32,
    },
    Wait,
    Call {
        function: HostFunction,
        data: usize,
    },
    /// A call submitted with `cuStreamAddCallback`, with the stream's handle.
    CallBack {
        function: StreamCallback,
        stream: usize,
        data: usize,
    },
}

impl Work {
    /// Whether another node can replace this one when an instantiated graph is updated.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch(a), Self::Launch(b)) => Arc::ptr_eq(&a.module, &b.module) && a.kernel == b.kernel,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}
