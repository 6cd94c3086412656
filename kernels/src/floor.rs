//! What a problem takes at the least, which measured times are held against.

/// No kernel can do with fewer bytes or operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Bytes of global memory read and written, each once.
    pub bytes: u64,
    /// Multiplications and additions of the matrix products.
    pub flops: u64,
}
