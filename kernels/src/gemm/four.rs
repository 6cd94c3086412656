//! Four sums, as `mma` leaves them in registers, and as memory takes them at once. Written out: arrays stay in
//! registers only if no loop is left over them, which iterators do not promise.

use crate::layout::Vector;

/// The numbers as bits.
#[inline(always)]
pub fn to_vector([a, b, c, d]: [f32; 4]) -> Vector {
    Vector([a.to_bits(), b.to_bits(), c.to_bits(), d.to_bits()])
}

/// The numbers of the bits.
#[inline(always)]
pub fn from_vector(Vector([a, b, c, d]): Vector) -> [f32; 4] {
    [f32::from_bits(a), f32::from_bits(b), f32::from_bits(c), f32::from_bits(d)]
}

/// Sums of four pairs.
#[inline(always)]
pub fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}

/// Two neighbouring sums, stored at once.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Two(pub [f32; 2]);
