//! How a layer that keeps a state is launched.

use core::fmt;

use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};
use cuda_std::vector::Vector;

use super::convolution::{self, CHUNK, causal_convolution};
use super::heads::{self, COLUMNS, MOST_ROWS, WARPS, recur_heads};
use crate::element::ElementType;
use crate::floor::Floor;
use crate::layout::VECTOR;
use crate::with_element;

/// The sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    /// The number of inputs that an output of the convolution depends on.
    pub kernel: u32,
    /// Channels of the convolution.
    pub channels: u32,
    /// The recurrence, unless the layer has only the convolution.
    pub heads: Option<HeadShape>,
}

/// The recurrence of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Whether the layer is a gated delta net. Otherwise it is Mamba-2.
    pub is_delta: bool,
    /// Heads of keys and queries. Divides `heads`.
    pub key_heads: u32,
    /// Heads of values.
    pub heads: u32,
    /// Rows of a head's matrix.
    pub key_dim: u32,
    /// Columns of a head's matrix.
    pub value_dim: u32,
    /// Whether head `h` has the key head `h % key_heads`. Otherwise consecutive heads have the same key head.
    pub tiled: bool,
}

/// Device addresses and sizes of a launch's sequences, see [the module](super).
#[derive(Clone, Copy, Debug)]
pub struct SequenceOperands {
    /// The layer's first block.
    pub states: DevicePtrMut<Vector>,
    /// Vectors from one block to the next.
    pub stride: u32,
    /// The block tables.
    pub tables: DevicePtr<u32>,
    /// `[sequences]`
    pub table_starts: DevicePtr<u32>,
    /// `[sequences + 1]`
    pub query_starts: DevicePtr<u32>,
    /// `[sequences]`
    pub contexts: DevicePtr<u32>,
    /// Tokens in a block.
    pub block_size: u32,
}

/// Device addresses of a convolution's arrays.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionOperands {
    /// `[rows][channels]`
    pub x: DevicePtr<Vector>,
    /// `[kernel][channels]`
    pub kernel: DevicePtr<Vector>,
    /// `[channels]`, or null.
    pub bias: DevicePtr<Vector>,
    /// `[rows][channels]`
    pub out: DevicePtrMut<Vector>,
}

/// Device addresses of the arrays of heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadOperands {
    /// `[rows][channels]`: the results of the convolution.
    pub mixed: DevicePtr<Vector>,
    /// `[rows]`: rows `step_stride` numbers apart.
    pub steps: DevicePtr<f32>,
    /// Numbers between rows of steps.
    pub step_stride: u32,
    /// `[heads]`: the factor on a step that gives the logarithm of a decay.
    pub decay: DevicePtr<f32>,
    /// `[heads]`: added to steps.
    pub step_bias: DevicePtr<f32>,
    /// `[heads]`, or null.
    pub skip: DevicePtr<f32>,
    /// `[rows][heads * value_dim]`
    pub out: DevicePtrMut<Vector>,
}

/// A layer that has no kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedRecurrence {
    /// The kernel size of the convolution.
    Kernel(u32),
    /// The number of channels of the convolution.
    Channels(u32),
    /// The number of elements of a key.
    Keys(u32),
    /// The number of elements of a value.
    Values(u32),
}

impl fmt::Display for UnsupportedRecurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(kernel) => write!(f, "convolutions of {kernel} inputs, not 3 or 4"),
            Self::Channels(channels) => write!(f, "convolutions of {channels} channels, not a multiple of {VECTOR}"),
            Self::Keys(size) => write!(f, "recurrent keys of {size} elements, not a multiple of 8 up to {MOST_ROWS}"),
            Self::Values(size) => write!(f, "recurrent values of {size} elements, not a multiple of {COLUMNS}"),
        }
    }
}

impl core::error::Error for UnsupportedRecurrence {}

impl RecurrentShape {
    /// The shape of a layer with heads.
    pub const fn with_heads(kernel: u32, heads: HeadShape) -> Self {
        let channels = 2 * heads.key_heads * heads.key_dim + heads.heads * heads.value_dim;
        RecurrentShape { kernel, channels, heads: Some(heads) }
    }

    /// Refuses a layer that has no kernels.
    ///
    /// # Errors
    /// [`UnsupportedRecurrence`], which says why.
    pub const fn check(self) -> Result<(), UnsupportedRecurrence> {
        if self.kernel != 3 && self.kernel != 4 {
            return Err(UnsupportedRecurrence::Kernel(self.kernel));
        }
        match self.heads {
            Some(heads) if heads.key_dim > MOST_ROWS || !heads.key_dim.is_multiple_of(8) => {
                Err(UnsupportedRecurrence::Keys(heads.key_dim))
            }
            Some(heads) if !heads.value_dim.is_multiple_of(COLUMNS) => {
                Err(UnsupportedRecurrence::Values(heads.value_dim))
            }
            _ if !self.channels.is_multiple_of(VECTOR) => Err(UnsupportedRecurrence::Channels(self.channels)),
            _ => Ok(()),
        }
    }

    /// Vectors of the convolution's part of a state.
    pub const fn input_vectors(self) -> u32 {
        (self.kernel - 1) * self.channels / 4
    }

    /// Vectors of a state.
    pub const fn state_vectors(self) -> u32 {
        self.input_vectors()
            + match self.heads {
                Some(heads) => heads.heads * heads.key_dim * heads.value_dim / 4,
                None => 0,
            }
    }

    /// The shape of the convolution's launch for sequences of at most `longest` rows.
    pub const fn convolution_shape(self, sequences: u32, longest: u32) -> LaunchShape {
        let threads = (self.channels / VECTOR).div_ceil(convolution::THREADS);
        LaunchShape::new([threads, sequences, longest.div_ceil(CHUNK)], convolution::THREADS)
    }

    /// Returns the convolution with its arguments.
    ///
    /// # Panics
    /// If [`check`](Self::check) refuses the layer.
    pub fn convolution(
        self,
        element: ElementType,
        operands: ConvolutionOperands,
        sequences: SequenceOperands,
    ) -> KernelCall {
        let ConvolutionOperands { x, kernel, bias, out } = operands;
        let SequenceOperands { states, stride, tables, table_starts, query_starts, contexts, block_size } = sequences;
        let (vectors, activates) = (self.channels / VECTOR, u32::from(self.heads.is_some()));
        let args = causal_convolution {
            x,
            kernel,
            bias,
            out,
            states,
            tables,
            table_starts,
            query_starts,
            contexts,
            stride,
            block_size,
            vectors,
            activates,
        };
        match self.kernel {
            3 => with_element!(element, T => args.instance::<T, 3>()),
            4 => with_element!(element, T => args.instance::<T, 4>()),
            other => panic!("there is no kernel for convolutions of {other} inputs"),
        }
    }

    /// The least work of the convolution of `rows` rows, when `read` states are read and `stored` states are stored.
    pub const fn convolution_floor(self, rows: u64, read: u64, stored: u64) -> Floor {
        let flops = 2 * rows * self.kernel as u64 * self.channels as u64;
        Floor { bytes: 4 * rows * self.channels as u64 + 16 * self.input_vectors() as u64 * (read + stored), flops }
    }
}

impl HeadShape {
    /// The shape of the launch.
    pub const fn shape(self, sequences: u32) -> LaunchShape {
        let tiles = self.heads * (self.value_dim / COLUMNS);
        LaunchShape::new([tiles.div_ceil(WARPS), sequences, 1], heads::THREADS)
    }

    /// Columns of steps.
    pub const fn step_columns(self) -> u32 {
        if self.is_delta { 2 * self.heads } else { self.heads }
    }

    /// Returns the kernel with its arguments, for sequences of fewer than `below` rows. `kernel` is the number of inputs of
    /// the layer's convolution.
    pub fn call(
        self,
        element: ElementType,
        kernel: u32,
        operands: HeadOperands,
        sequences: SequenceOperands,
        below: u32,
    ) -> KernelCall {
        let HeadOperands { mixed, steps, step_stride, decay, step_bias, skip, out } = operands;
        let SequenceOperands { states, stride, tables, table_starts, query_starts, contexts, block_size } = sequences;
        let HeadShape { is_delta, key_heads, heads, key_dim, value_dim, tiled } = self;
        let layer = RecurrentShape::with_heads(kernel, self);
        let args = recur_heads {
            mixed,
            steps,
            decay,
            step_bias,
            skip,
            out: out.cast(),
            states,
            tables,
            table_starts,
            query_starts,
            contexts,
            stride,
            block_size,
            offset: layer.input_vectors(),
            channels: layer.channels / VECTOR,
            step_stride,
            heads,
            key_heads,
            key_dim,
            value_dim,
            tiled: u32::from(tiled),
            below,
        };
        if is_delta {
            with_element!(element, T => args.instance::<T, 1>())
        } else {
            with_element!(element, T => args.instance::<T, 0>())
        }
    }

    /// The least work for `rows` rows, when `read` states are read and `stored` states are stored.
    pub const fn floor(self, rows: u64, read: u64, stored: u64) -> Floor {
        let HeadShape { is_delta, key_heads, heads, key_dim, value_dim, .. } = self;
        let inner = heads as u64 * value_dim as u64;
        let matrices = inner * key_dim as u64;
        let elements = 2 * key_heads as u64 * key_dim as u64 + 2 * inner;
        let bytes = 4 * matrices * (read + stored) + rows * (2 * elements + 4 * self.step_columns() as u64);
        Floor { bytes, flops: rows * matrices * if is_delta { 6 } else { 4 } }
    }
}
