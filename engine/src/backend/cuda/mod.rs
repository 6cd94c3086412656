//! The GPU backend. So far: the kernels' code, as it lies in the binary.

pub mod ptx;
