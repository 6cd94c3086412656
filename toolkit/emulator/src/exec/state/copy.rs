//! A copy of `cp.async` that has not ended.

/// A copy of `cp.async` that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCopy {
    /// The offset in shared memory that it writes.
    pub target: usize,
    /// The address in global memory that it reads.
    pub source: u64,
    /// Bytes that it writes.
    pub bytes: u32,
    /// Bytes that it reads; it fills the rest with zeros.
    pub source_bytes: u32,
    /// The lane that started it.
    pub lane: u8,
    /// The source's bytes when it started.
    pub before: [u8; 16],
}
