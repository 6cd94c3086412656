//! Several `f32` that are loaded and stored by one instruction.

/// Eight bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct F32x2(pub [f32; 2]);

/// Sixteen bytes.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct F32x4(pub [f32; 4]);
