//! The roofline of a problem: the fewest bytes and operations that it needs. Measured times are compared with it.

/// The least work of a problem. No kernel can use fewer bytes or operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Bytes of global memory read and written, each once.
    pub bytes: u64,
    /// Multiplications and additions of the matrix products.
    pub flops: u64,
}
