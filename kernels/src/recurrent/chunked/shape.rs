//! How the kernels for chunks are launched.

use cuda_std::launch::{DevicePtrMut, KernelCall, LaunchShape};
use cuda_std::vector::Vector;

use super::pass::{self, pass_chunks};
use super::prepare::{self, MOST_HEADS, prepare_chunks};
use super::tile::tiles_before;
use super::{COLUMNS, ROWS, THREADS, unit_vectors};
use crate::element::ElementType;
use crate::floor::Floor;
use crate::layout::VECTOR;
use crate::recurrent::plan::{HeadOperands, HeadShape, RecurrentShape, SequenceOperands};
use crate::with_element;

/// The least rows of a sequence that the engine computes in chunks.
///
/// [`recur_heads`](crate::recurrent::heads::recur_heads()) takes some 300 clocks for a row, so 64 rows take 19,000. A tile
/// takes some 4,000 clocks in [`pass_chunks()`], and the rows may lie in two. [`prepare_chunks()`] takes some 5,000 clocks
/// once, and another launch. Chunks so pay from about 64 rows on. With twice as many the workspace is two thirds as large,
/// since short sequences waste more of their tiles.
pub const FROM_ROWS: u32 = 128;

/// Heads of a layer whose sequences are computed in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedShape {
    /// The heads.
    pub heads: HeadShape,
    /// The least rows of a sequence that is computed in chunks.
    pub from: u32,
}

impl ChunkedShape {
    /// Heads of a block of [`prepare_chunks()`]. They have the same key head.
    const fn together(self) -> u32 {
        let group = self.heads.heads / self.heads.key_heads;
        let mut together = MOST_HEADS;
        while !group.is_multiple_of(together) {
            together -= 1;
        }
        together
    }

    /// Vectors of the workspace for sequences whose rows are among the first `rows` of a step.
    pub const fn workspace_vectors(self, rows: u32) -> usize {
        let units = tiles_before(rows, self.from) as usize * self.heads.heads as usize;
        units * unit_vectors(self.heads.is_delta) as usize
    }

    /// The shape of the first launch, for sequences of at most `longest` rows.
    pub const fn prepare_shape(self, sequences: u32, longest: u32) -> LaunchShape {
        let parts = self.heads.heads / self.together();
        LaunchShape::new([longest / ROWS + 2, sequences, parts], THREADS).with_shared(prepare::SHARED)
    }

    /// Returns the first kernel with its arguments.
    pub fn prepare(
        self,
        element: ElementType,
        operands: HeadOperands,
        workspace: DevicePtrMut<Vector>,
        sequences: SequenceOperands,
    ) -> KernelCall {
        let HeadOperands { mixed, steps, step_stride, decay, step_bias, skip, .. } = operands;
        let SequenceOperands { tables, table_starts, query_starts, contexts, block_size, .. } = sequences;
        let HeadShape { is_delta, key_heads, heads, key_dim, value_dim, tiled } = self.heads;
        let args = prepare_chunks {
            mixed,
            steps,
            decay,
            step_bias,
            skip,
            workspace,
            tables,
            table_starts,
            query_starts,
            contexts,
            block_size,
            channels: self.channels(),
            step_stride,
            heads,
            key_heads,
            key_dim,
            value_dim,
            tiled: u32::from(tiled),
            together: self.together(),
            from: self.from,
        };
        if is_delta {
            with_element!(element, T => args.instance::<T, 1>())
        } else {
            with_element!(element, T => args.instance::<T, 0>())
        }
    }

    /// The shape of the second launch.
    pub const fn pass_shape(self, sequences: u32) -> LaunchShape {
        let parts = self.heads.heads * self.heads.value_dim.div_ceil(COLUMNS);
        LaunchShape::new([parts, sequences, 1], THREADS).with_shared(pass::SHARED)
    }

    /// Returns the second kernel with its arguments. `kernel` is the number of inputs of the layer's convolution.
    pub fn pass(
        self,
        element: ElementType,
        kernel: u32,
        operands: HeadOperands,
        workspace: DevicePtrMut<Vector>,
        sequences: SequenceOperands,
    ) -> KernelCall {
        let HeadOperands { mixed, out, .. } = operands;
        let SequenceOperands { states, stride, tables, table_starts, query_starts, contexts, block_size } = sequences;
        let HeadShape { is_delta, key_heads, heads, key_dim, value_dim, tiled } = self.heads;
        let args = pass_chunks {
            mixed,
            workspace: workspace.cast_const(),
            out,
            states,
            tables,
            table_starts,
            query_starts,
            contexts,
            stride,
            block_size,
            offset: RecurrentShape::with_heads(kernel, self.heads).input_vectors(),
            channels: self.channels(),
            heads,
            key_heads,
            key_dim,
            value_dim,
            tiled: u32::from(tiled),
            from: self.from,
        };
        if is_delta {
            with_element!(element, T => args.instance::<T, 1>())
        } else {
            with_element!(element, T => args.instance::<T, 0>())
        }
    }

    /// Vectors of a row of the convolution's results.
    const fn channels(self) -> u32 {
        RecurrentShape::with_heads(1, self.heads).channels / VECTOR
    }

    /// Bytes of the workspace that `rows` rows need at least.
    const fn workspace_bytes(self, rows: u64) -> u64 {
        rows.div_ceil(ROWS as u64) * self.heads.heads as u64 * unit_vectors(self.heads.is_delta) as u64 * 16
    }

    /// The least work of the first launch.
    pub const fn prepare_floor(self, rows: u64) -> Floor {
        let HeadShape { is_delta, key_heads, heads, key_dim, .. } = self.heads;
        let bytes = rows * (4 * (key_heads * key_dim) as u64 + 4 * self.heads.step_columns() as u64);
        let products = if is_delta { 2 } else { 1 };
        let flops = products * rows * (ROWS * key_dim) as u64 * key_heads as u64;
        // A matrix `T` needs a third of its size in sums for each element.
        let inverse = if is_delta { rows * heads as u64 * (ROWS * ROWS / 3) as u64 } else { 0 };
        Floor { bytes: bytes + self.workspace_bytes(rows), flops: flops + inverse }
    }

    /// The least work of the second launch, when `read` states are read and `stored` states are stored.
    pub const fn pass_floor(self, rows: u64, read: u64, stored: u64) -> Floor {
        let HeadShape { is_delta, heads, value_dim, .. } = self.heads;
        let Floor { bytes, flops } = self.heads.floor(rows, read, stored);
        let steps = 4 * rows * self.heads.step_columns() as u64;
        let products = if is_delta { 2 } else { 1 };
        let within = products * rows * (ROWS * heads) as u64 * value_dim as u64;
        Floor { bytes: bytes - steps + self.workspace_bytes(rows), flops: flops + within }
    }
}
