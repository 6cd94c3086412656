//! The causal convolution of each channel, and the inputs that later steps need.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x`, `out [rows][channels]`, 16 bits; `kernel [KERNEL][channels]` in `f32` |
//! | grid | x: channels, eight for each of [`THREADS`] threads; y: sequences; z: [`CHUNK`] rows of each sequence |
//! | floor | `4 rows channels` bytes, and `8 (KERNEL - 1) channels` for each state that is read and stored |
//!
//! # What limits it
//!
//! Memory. A thread passes over its rows with the last inputs in registers, so it loads each input once, apart from the
//! `KERNEL - 1` rows before its chunk. An output takes `KERNEL` multiplications and an exponential.
//!
//! A state may be stored in the block that it is read from. Only the threads of the first chunk read the state, so they
//! store it too. The states in other blocks are stored by the chunks with their last rows.

use cuda_std::prelude::*;
use cuda_std::unroll::{eight, unroll};
use cuda_std::vector::Vector;

use super::NO_BLOCK;
use super::spans::{Sequences, Span};
use crate::element::{Bf16, Element, F16};
use crate::gemm::activation::{Activation, activate};
use crate::vector::{narrow, widen};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Rows of a thread.
pub const CHUNK: u32 = 32;

/// Computes `out[t] = sum of kernel[i] * x[t - (KERNEL - 1) + i] + bias` for each channel, with SiLU if `activates` is not
/// 0, and stores the last inputs in the sequences' states.
///
/// Rows have `vectors` vectors. `bias` is null, or has an `f32` for each channel. [The module](super) describes the other
/// arguments.
///
/// # Safety
/// The arrays have these shapes. Blocks in the tables are within the layer, and no block is read or stored by two
/// sequences. The launch comes from a [`RecurrentShape`](super::plan::RecurrentShape).
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16], KERNEL = [3, 4]))]
pub unsafe fn causal_convolution<T: Element, const KERNEL: u32>(
    x: *const Vector,
    kernel: *const Vector,
    bias: *const Vector,
    out: *mut Vector,
    states: *mut Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    stride: u32,
    block_size: u32,
    vectors: u32,
    activates: u32,
) {
    let vector = thread::index_1d();
    if vector >= vectors {
        return;
    }
    let sequences = Sequences { states, stride, tables, table_starts, query_starts, contexts, block_size };
    // SAFETY: the sequence is in the launch, and the vector was just checked. The chunk is within the sequence.
    unsafe {
        let span = sequences.span(thread::block_idx_y());
        let chunk = thread::block_idx_z();
        let (from, to) = (chunk * CHUNK, (chunk + 1) * CHUNK);
        let to = if to < span.len { to } else { span.len };
        if from >= to {
            return;
        }
        let inputs = Inputs::<KERNEL> { x, span, vectors, vector };
        let weights = Weights::<KERNEL>::load(kernel, bias, vectors, vector);
        let function = if activates != 0 { Activation::Silu as u32 } else { 0 };
        // The inputs of the last tokens, the latest last. Only three are used if `KERNEL` is 4, and two if it is 3.
        let mut held = [[0.0; 8]; 3];
        unroll::<3>(|i| {
            if i as u32 + 1 < KERNEL {
                held[i] = inputs.get::<T>(from + i as u32);
            }
        });
        let mut row = from;
        while row < to {
            let at = (span.first_row + row) as usize * vectors as usize + vector as usize;
            let input = widen::<T>(*x.add(at));
            let sums = weights.apply(held, input);
            *out.add(at) = narrow::<T>(eight(|e| activate(function, sums[e])));
            held = if KERNEL == 4 { [held[1], held[2], input] } else { [held[1], input, input] };
            row += 1;
        }
        inputs.store_all::<T>(from, to);
    }
}

/// The factors of eight channels.
struct Weights<const KERNEL: u32> {
    taps: [[f32; 8]; 4],
    bias: [f32; 8],
}

impl<const KERNEL: u32> Weights<KERNEL> {
    /// # Safety
    /// `kernel` and `bias` have rows of `vectors` times eight numbers, and `bias` may be null.
    #[inline(always)]
    unsafe fn load(kernel: *const Vector, bias: *const Vector, vectors: u32, vector: u32) -> Self {
        let mut weights = Weights { taps: [[0.0; 8]; 4], bias: [0.0; 8] };
        // SAFETY: the vector is within the rows.
        unsafe {
            unroll::<4>(|tap| {
                if (tap as u32) < KERNEL {
                    weights.taps[tap] = numbers(kernel.add(2 * (tap * vectors as usize + vector as usize)));
                }
            });
            if !bias.is_null() {
                weights.bias = numbers(bias.add(2 * vector as usize));
            }
        }
        weights
    }

    /// Returns the sums for the inputs `held` and the latest one.
    #[inline(always)]
    fn apply(&self, held: [[f32; 8]; 3], input: [f32; 8]) -> [f32; 8] {
        let Weights { taps, bias } = self;
        eight(|e| {
            let mut sum = GpuFloat::mul_add(held[0][e], taps[0][e], bias[e]);
            sum = GpuFloat::mul_add(held[1][e], taps[1][e], sum);
            if KERNEL == 4 {
                sum = GpuFloat::mul_add(held[2][e], taps[2][e], sum);
            }
            GpuFloat::mul_add(input[e], taps[KERNEL as usize - 1][e], sum)
        })
    }
}

/// The inputs of eight channels of a sequence.
#[derive(Clone, Copy)]
struct Inputs<const KERNEL: u32> {
    x: *const Vector,
    span: Span,
    vectors: u32,
    vector: u32,
}

impl<const KERNEL: u32> Inputs<KERNEL> {
    /// Rows of a state.
    const ROWS: u32 = KERNEL - 1;

    /// Returns the input `KERNEL - 1` rows before `row`: of a row, of an earlier token, or zero before the first token.
    ///
    /// # Safety
    /// `row` is at most `KERNEL - 2` rows beyond the sequence. Other inputs than this have not changed in the state that the
    /// sequence began with.
    #[inline(always)]
    unsafe fn get<T: Element>(&self, row: u32) -> [f32; 8] {
        let back = Self::ROWS;
        // SAFETY: rows of the sequence are rows of `x`, and the state has a row for each of the last tokens.
        unsafe {
            if row >= back {
                let at = (self.span.first_row + row - back) as usize * self.vectors as usize;
                widen::<T>(*self.x.add(at + self.vector as usize))
            } else if self.span.start + row >= back {
                numbers(self.row(self.span.source, self.span.start + row - back))
            } else {
                [0.0; 8]
            }
        }
    }

    /// Returns the address of the input of a position in a block.
    #[inline(always)]
    fn row(&self, block: u32, position: u32) -> *mut Vector {
        let at = (position % Self::ROWS) as usize * self.vectors as usize + self.vector as usize;
        self.span.state(block).wrapping_add(2 * at)
    }

    /// Stores the states after rows of a chunk, and in the first chunk also the state in the block that the sequence
    /// began with.
    ///
    /// # Safety
    /// As for [`causal_convolution()`]. The chunk has read the inputs before its rows.
    #[inline(always)]
    unsafe fn store_all<T: Element>(&self, from: u32, to: u32) {
        let span = self.span;
        // SAFETY: the blocks belong to the sequence, and each state is stored by the threads of one chunk.
        unsafe {
            let last = span.index(to - 1);
            let mut index = span.index(from);
            while index <= last {
                let end = span.end(index);
                let block = span.stored(index, end);
                if end <= to && block != NO_BLOCK && block != span.source {
                    self.store::<T>(block, end);
                }
                index += 1;
            }
            if from == 0 && span.source != NO_BLOCK {
                let (first, last) = (span.index(0), span.index(span.len - 1));
                if span.stored(last, span.len) == span.source {
                    self.store::<T>(span.source, span.len);
                } else if span.stored(first, span.end(first)) == span.source {
                    self.store::<T>(span.source, span.end(first));
                }
            }
        }
    }

    /// Stores the last inputs of the first `end` rows, and of earlier tokens, in a block.
    ///
    /// # Safety
    /// The layer has the block.
    #[inline(always)]
    unsafe fn store<T: Element>(&self, block: u32, end: u32) {
        unroll::<3>(|i| {
            if i as u32 + 1 < KERNEL {
                // SAFETY: an input of an earlier token is in the same row of the state that the sequence began with. That
                // state may be in this block, and its other rows are not needed.
                unsafe {
                    let [a, b, c, d, e, f, g, h] = self.get::<T>(end + i as u32);
                    // Rows before the first token have the place of a later position.
                    let to = self.row(block, self.span.start + end + i as u32);
                    *to = Vector::from_f32([a, b, c, d]);
                    *to.add(1) = Vector::from_f32([e, f, g, h]);
                }
            }
        });
    }
}

/// Loads eight numbers.
///
/// # Safety
/// The address has two vectors.
#[inline(always)]
unsafe fn numbers(from: *const Vector) -> [f32; 8] {
    // SAFETY: the caller ensures it.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { ((*from).to_f32(), (*from.add(1)).to_f32()) };
    [a, b, c, d, e, f, g, h]
}
