//! What a stream can be asked to do.

use super::host_call::{HostFunction, StreamCallback};
use crate::arg::Arg;
use crate::host_bytes::HostBytes;
use crate::memory::DeviceAddress;
use crate::module::PtxModule;
use std::sync::Arc;

/// Bytes on their way to the device.
#[derive(Clone, Debug)]
pub(super) enum UploadSource {
    /// Pageable memory: copied when the copy was asked for.
    Staged(Arc<[u8]>),
    /// Page-locked memory: read when the copy is done.
    Pinned(HostBytes),
}

/// A launch that was asked for.
#[derive(Clone, Debug)]
pub(super) struct LaunchRequest {
    pub module: Arc<PtxModule>,
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: usize,
    /// Blocks of a cluster, if the launch has the attribute.
    pub cluster: Option<[u32; 3]>,
    /// Whether it may begin before the launch ahead of it is over.
    pub dependent: bool,
    pub args: Vec<Arg>,
}

/// Something that a stream does.
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
    /// From the memory of one context to that of another of its group, by their numbers.
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
    /// What `cuStreamAddCallback` asked for, with the stream's handle.
    CallBack {
        function: StreamCallback,
        stream: usize,
        data: usize,
    },
}

impl Work {
    /// Whether another node can take this one's place in an instantiated graph.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch(a), Self::Launch(b)) => Arc::ptr_eq(&a.module, &b.module) && a.kernel == b.kernel,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}
