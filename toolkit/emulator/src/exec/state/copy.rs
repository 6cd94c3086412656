//! Copies of `cp.async` in flight, and arrivals at mbarriers that wait for them.

/// A copy of `cp.async` that is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCopy {
    /// The offset in shared memory that it writes.
    pub target: u32,
    /// The address in global memory that it reads.
    pub source: u64,
    /// The index of the buffer that contained the address when the copy started.
    pub buffer: u32,
    /// Bytes that it writes.
    pub bytes: u8,
    /// Bytes that it reads. It fills the rest with zeros.
    pub source_bytes: u8,
    /// The lane that started it.
    pub lane: u8,
    /// The bytes of the source when it started, followed by zeros.
    pub before: [u8; 16],
}

/// An arrival at an mbarrier that happens after copies of a thread have ended.
#[derive(Debug)]
pub(crate) struct PendingArrival {
    /// The offset of the mbarrier.
    pub barrier: u64,
    /// The index of the thread's warp.
    pub warp: usize,
    /// The thread and its epoch, which count as the writer of the copied bytes.
    pub writer: (usize, u32),
    /// The copies, each with its group's number in the warp.
    pub copies: Vec<(u64, PendingCopy)>,
}
