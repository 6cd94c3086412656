//! Copies of `cp.async` that have not ended, and arrivals at mbarriers that wait for them.

/// A copy of `cp.async` that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCopy {
    /// The offset in shared memory that it writes.
    pub target: u32,
    /// The address in global memory that it reads.
    pub source: u64,
    /// The index of the buffer that had it when the copy started.
    pub buffer: u32,
    /// Bytes that it writes.
    pub bytes: u8,
    /// Bytes that it reads; it fills the rest with zeros.
    pub source_bytes: u8,
    /// The lane that started it.
    pub lane: u8,
    /// The source's bytes when it started, and zeros.
    pub before: [u8; 16],
}

/// An arrival at an mbarrier that happens when copies of a thread have ended.
#[derive(Debug)]
pub(crate) struct PendingArrival {
    /// The offset of the mbarrier.
    pub barrier: u64,
    /// The index of the thread's warp.
    pub warp: usize,
    /// The thread and its epoch, as whose write the copies end.
    pub writer: (usize, u32),
    /// The copies, each with the number of its group among those of the warp.
    pub copies: Vec<(u64, PendingCopy)>,
}
