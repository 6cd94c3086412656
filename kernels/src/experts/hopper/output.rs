//! The output of a warp group: sums are finished in registers, and become rows of 16-bit elements in shared memory. Threads
//! store whole vectors of these rows, since tensor copies would also store rows of the next expert.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::ptx::memory::store_l2;
use cuda_std::shared::shared_offset;
use cuda_std::unroll::unroll;

use super::{COLUMNS, GROUP_THREADS};
use crate::element::Element;
use crate::experts::product::{Group, GroupOutput};
use crate::gemm::epilogue::GATED_ROWS;
use crate::gemm::hopper::output::{PASS, TILE, TILE_BYTES, place, put_tiles};
use crate::gemm::operand::ROW_BYTES;

/// Vectors in a row of a pass.
const VECTORS: u32 = PASS / 8;

/// Rows that the group's threads store at a time. They are a multiple of the rows of the swizzle pattern.
const STEP: u32 = GROUP_THREADS / VECTORS;

const _: () = assert!(COLUMNS == 2 * PASS && STEP.is_multiple_of(8));

/// The output of a warp group.
pub struct RowOutput {
    /// The product's output.
    pub output: GroupOutput,
    /// The group's tiles of [`PASS`] columns in shared memory, aligned to the swizzle pattern.
    pub memory: *mut u8,
    /// The thread's number in the group.
    pub thread: u32,
}

impl RowOutput {
    /// Finishes and stores sums of `rows` by the weight's rows from `column` on.
    ///
    /// # Safety
    /// All threads of the group call this together, `sync` is their barrier, and no other thread uses their memory. The
    /// output is as declared, with rows of whole vectors.
    #[inline(always)]
    pub unsafe fn store<T: Element>(&self, sums: &mut [[f32; 4]; 32], rows: Group, column: u32, sync: impl Fn()) {
        let n = self.output.n;
        // SAFETY: the contract is the same.
        unsafe {
            if !self.output.bias.is_null() {
                self.add_bias::<T>(sums, column);
            }
            if self.output.is_gated() {
                // Each result replaces sums that were read before.
                unroll::<16>(|pair| {
                    let ([a, b, c, d], [e, f, g, h]) = (sums[2 * pair], sums[2 * pair + 1]);
                    sums[pair] = [(a, e), (b, f), (c, g), (d, h)].map(|(gate, up)| self.output.combined(gate, up));
                });
                self.store_pass::<T, 0>(sums, rows, [column / 2, n / 2], &sync);
                return;
            }
            self.store_pass::<T, 0>(sums, rows, [column, n], &sync);
            if column + PASS < n {
                self.store_pass::<T, 16>(sums, rows, [column + PASS, n], &sync);
            }
        }
    }

    /// Adds the biases of the weight's rows from `column` on.
    ///
    /// # Safety
    /// There is a bias of `n` elements.
    #[inline(always)]
    unsafe fn add_bias<T: Element>(&self, sums: &mut [[f32; 4]; 32], column: u32) {
        unroll::<32>(|eight| {
            let row = column + eight as u32 * GATED_ROWS + warp::lane_id() % 4 * 2;
            if row < self.output.n {
                // SAFETY: `n` is a multiple of eight, so both rows are below it.
                let pair = unsafe { T::Pair::from_bits(*self.output.bias.add(row as usize).cast()) };
                let ([a, b], [c, d, e, f]) = (pair.to_f32(), sums[eight]);
                sums[eight] = [c + a, d + b, e + a, f + b];
            }
        });
    }

    /// Stores finished sums from index `FIRST` on, in [`PASS`] columns of the output from `column` to `end`.
    ///
    /// # Safety
    /// As for [`store`](Self::store).
    #[inline(always)]
    unsafe fn store_pass<T: Element, const FIRST: usize>(
        &self,
        sums: &[[f32; 4]; 32],
        rows: Group,
        [column, end]: [u32; 2],
        sync: impl Fn(),
    ) {
        let GroupOutput { out, stride, .. } = self.output;
        let (vector, mut row) = (self.thread % VECTORS, self.thread / VECTORS);
        let in_tile = row * ROW_BYTES + ((vector % 8) ^ (row % 8)) * 16;
        let mut from = self.memory.wrapping_add((vector / (TILE / 8) * TILE_BYTES + in_tile) as usize);
        let to = column + vector * 8;
        // After this barrier all threads have read the previous pass.
        sync();
        // SAFETY: all threads are here, and the rows are within the group's tiles. Rows and columns are checked, and
        // vectors of the output are aligned.
        unsafe {
            put_tiles::<T, FIRST>(sums, place(shared_offset(self.memory), self.thread), PASS);
            sync();
            if to >= end {
                return;
            }
            while row < rows.count {
                let at = self.output.row(rows, row) as usize * stride as usize + to as usize;
                // Not by `*`: the compiler would split a copy whose elements are unused into two of eight bytes.
                store_l2(out.add(at).cast(), *from.cast());
                from = from.wrapping_add((STEP * ROW_BYTES) as usize);
                row += STEP;
            }
        }
    }
}
