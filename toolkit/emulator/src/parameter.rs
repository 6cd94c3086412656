//! Parameters of kernels.

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the PTX.
    pub name: String,
    /// Its offset in the block of parameters.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}
