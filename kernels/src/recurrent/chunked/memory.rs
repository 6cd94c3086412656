//! The shared memory of [`pass_chunks`](super::pass::pass_chunks()): two tiles of keys, one of queries, the warps' values,
//! and a unit of the workspace.
//!
//! Addresses follow from constants wherever they are needed, since registers are short.

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll::hidden;
use cuda_std::warp::WARP_SIZE;

use super::copies::{KEY_BYTES, VALUE_BYTES};
use super::{ROW_NUMBERS, ROWS, THREADS, unit_vectors};

/// Offset of the queries.
pub const QUERIES: u32 = 2 * KEY_BYTES;

/// Offset of the values.
const VALUES: u32 = QUERIES + KEY_BYTES;

/// Offset of the unit.
pub const UNIT: u32 = VALUES + THREADS / WARP_SIZE * VALUE_BYTES;

/// Bytes of all.
pub const BYTES: u32 = UNIT + unit_vectors(true) * 16;

/// Returns the address of an offset, as `.shared` instructions take it.
#[inline(always)]
pub fn address(offset: u32) -> u32 {
    shared_offset(dynamic_shared_mem::<u8>()) + hidden(offset)
}

/// Returns a pointer to an offset.
#[inline(always)]
pub fn pointer<T>(offset: u32) -> *mut T {
    dynamic_shared_mem::<u8>().wrapping_add(offset as usize).cast()
}

/// Returns the offset of the warp's values.
#[inline(always)]
pub fn values() -> u32 {
    VALUES + hidden(warp::warp_id()) * VALUE_BYTES
}

/// Returns a pointer to a row's number, see [`SCALARS`](super::SCALARS).
#[inline(always)]
pub fn number(which: u32, row: u32) -> *const f32 {
    pointer(UNIT + ROW_NUMBERS + (which * ROWS + row) * 4)
}
