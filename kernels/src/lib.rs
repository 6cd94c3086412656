//! The device side of Quire: kernels written in Rust, and what host and device must agree on.
//!
//! Nothing runs on a GPU yet. The crate exists so that the workspace has its final shape.
