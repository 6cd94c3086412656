//! Rows of tables: token embeddings, learned positions, and the rows whose logits are computed.
//!
//! | kernel | computes | shapes |
//! | --- | --- | --- |
//! | [`gather_rows()`] | `out[r] = x[rows[r]]` | `x [_][H]`, `rows [R]`, `out [R][H]` |
//! | [`embed()`] | `out[t] = table[tokens[t]] + positions[at[t] + offset]` | tables `[_][H]`, `out [T][H]` |
//! | [`embed_part()`] | [`embed()`] for a part of the table, with zeros for tokens outside it | table `[count][H]` |
//! | [`add_positions()`] | `x[t] += positions[at[t] + offset]` | `x [T][H]`, table `[_][H]` |
//!
//! All are launched with [`shape`]: a block handles [`THREADS`] vectors of one row. Sums are computed in `f32` and
//! rounded once. Token embedding without learned positions is [`gather_rows()`], which does not interpret elements and
//! thus serves every 16-bit type.
//!
//! # Floor
//!
//! Each row of `2 H` bytes is read once and written once. With positions, a second row is read.
//!
//! # Ladder
//!
//! 1. One thread for each element: the row's index is read H times, and accesses are of 2 bytes.
//! 2. (here) One thread for each 16-byte vector. A decode step moves a few hundred KiB, which takes less time than a
//!    launch. A prompt of 4,096 tokens is memory-bound, with 2 KiB in flight a block and 16 blocks resident on a
//!    multiprocessor.

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use crate::element::{Bf16, Element, F16};
use crate::vector::{narrow, widen};
use cuda_std::ptx::memory::load_constant;
use cuda_std::unroll::eight;

/// Threads per block of all kernels here.
pub const THREADS: u32 = 128;

/// The launch for `rows` rows of `vectors` vectors.
pub const fn shape(rows: u32, vectors: u32) -> LaunchShape {
    LaunchShape::new([rows, vectors.div_ceil(THREADS), 1], THREADS)
}

/// Bytes that the kernels must move: `rows` rows of `vectors` vectors, read from each of `tables` tables and written
/// once.
pub const fn floor_bytes(rows: u64, vectors: u64, tables: u64) -> u64 {
    rows * vectors * 16 * (tables + 1)
}

/// Returns this block's row, and the index of this thread's vector in it.
#[inline(always)]
fn place() -> (usize, u32) {
    (thread::block_idx_x() as usize, thread::block_idx_y() * THREADS + thread::thread_idx_x())
}

/// Copies rows of a token table, or of the hidden states whose logits are computed.
///
/// # Safety
/// Each of `rows` (one for each x of the grid) is a row of `x`. Rows have `vectors` vectors and are 16-byte aligned.
/// The launch has the shape of [`shape`].
#[kernel(dependent, max_threads = 128)]
pub unsafe fn gather_rows(x: *const Vector, rows: *const u32, out: *mut Vector, vectors: u32) {
    let (row, vector) = place();
    if vector >= vectors {
        return;
    }
    // SAFETY: `vector` was just checked against the row, and `rows[row]` is a row of `x`, by this kernel's contract.
    unsafe {
        let from = *rows.add(row) as usize;
        // Not by `*`: the compiler would split a copy whose elements are unused into two of eight bytes.
        let vector_of_row = load_constant(x.add(from * vectors as usize + vector as usize));
        *out.add(row * vectors as usize + vector as usize) = vector_of_row;
    }
}

/// Embeds tokens with learned positions: row `tokens[t]` of `table` plus row `positions[t] + offset` of
/// `position_table`.
///
/// # Safety
/// Tokens and positions (with the offset) are rows of their tables. The rest is as for [`gather_rows()`].
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn embed<T: Element>(
    table: *const Vector,
    position_table: *const Vector,
    tokens: *const u32,
    positions: *const u32,
    offset: u32,
    out: *mut Vector,
    vectors: u32,
) {
    let (row, vector) = place();
    if vector >= vectors {
        return;
    }
    // SAFETY: `vector` was just checked against the row. Token and position are rows of their tables, by this kernel's
    // contract.
    unsafe {
        let (token, position) = (*tokens.add(row) as usize, (*positions.add(row) + offset) as usize);
        let token = *table.add(token * vectors as usize + vector as usize);
        let position = *position_table.add(position * vectors as usize + vector as usize);
        *out.add(row * vectors as usize + vector as usize) = sum::<T>(token, position);
    }
}

/// Embeds the tokens of a part of the vocabulary, as each of several workers does.
///
/// Token `tokens[t]` gets row `tokens[t] - first` of `table`, which has `count` rows, or zeros if it is outside that
/// part. Row `positions[t] + offset` of `position_table` is added, unless that table is null.
///
/// # Safety
/// Positions (with the offset) are rows of their table, if it is not null. The rest is as for [`gather_rows()`].
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn embed_part<T: Element>(
    table: *const Vector,
    position_table: *const Vector,
    tokens: *const u32,
    positions: *const u32,
    offset: u32,
    first: u32,
    count: u32,
    out: *mut Vector,
    vectors: u32,
) {
    let (row, vector) = place();
    if vector >= vectors {
        return;
    }
    // SAFETY: `vector` was just checked against the row, and the token against the table. The position is a row of its
    // table, by this kernel's contract.
    unsafe {
        let token = (*tokens.add(row)).wrapping_sub(first);
        let mut sum_of_both = Vector::default();
        if token < count {
            sum_of_both = *table.add(token as usize * vectors as usize + vector as usize);
        }
        if !position_table.is_null() {
            let position = (*positions.add(row) + offset) as usize;
            sum_of_both = sum::<T>(sum_of_both, *position_table.add(position * vectors as usize + vector as usize));
        }
        *out.add(row * vectors as usize + vector as usize) = sum_of_both;
    }
}

/// Adds learned positions after a projection of the embedding (OPT-350m): row `positions[t] + offset` of `table` to row
/// `t` of `x`.
///
/// # Safety
/// As for [`embed()`].
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn add_positions<T: Element>(
    x: *mut Vector,
    table: *const Vector,
    positions: *const u32,
    offset: u32,
    vectors: u32,
) {
    let (row, vector) = place();
    if vector >= vectors {
        return;
    }
    // SAFETY: `vector` was just checked against the row, and the position is a row of the table, by this kernel's
    // contract.
    unsafe {
        let position = (*positions.add(row) + offset) as usize;
        let x = x.add(row * vectors as usize + vector as usize);
        *x = sum::<T>(*x, *table.add(position * vectors as usize + vector as usize));
    }
}

/// Adds two vectors, rounding each sum once.
#[inline(always)]
pub(crate) fn sum<T: Element>(a: Vector, b: Vector) -> Vector {
    let (a, b) = (widen::<T>(a), widen::<T>(b));
    narrow::<T>(eight(|i| a[i] + b[i]))
}
