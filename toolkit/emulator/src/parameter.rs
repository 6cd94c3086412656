//! Parameters of kernels.

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the PTX.
    pub name: String,
    /// Its offset in the kernel's block of parameters, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}
