//! The roofline of a problem: the least bytes and operations it takes, with which measured times are compared.

/// The least that a problem takes: no kernel can do with fewer bytes or operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Bytes of global memory read and written, each once.
    pub bytes: u64,
    /// Multiplications and additions of the matrix products.
    pub flops: u64,
}
