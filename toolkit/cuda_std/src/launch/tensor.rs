//! Tensors that kernels copy in tiles.

use crate::ptx::pattern::TilePattern;

/// A tensor in device memory and the tiles that a kernel copies of it. A kernel's `&CuTensorMap` parameter has this
/// type on the host. The launch asks the driver to create the map, and fails if the driver rejects it.
///
/// Dimensions are listed innermost first. The address and the strides are multiples of 16 bytes. A tile's innermost
/// dimension is a multiple of 16 bytes as well, and no longer than its pattern. A tile has at most 256 elements along
/// each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorTile {
    address: u64,
    element_bytes: u32,
    pattern: TilePattern,
    rank: usize,
    dimensions: [TileDimension; MOST_DIMENSIONS],
}

/// One dimension of a [`TensorTile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileDimension {
    /// Elements of the tensor along this dimension.
    pub size: u64,
    /// Bytes from one element to the next. Ignored for the innermost dimension, whose elements are contiguous.
    pub stride: u64,
    /// Elements of a tile along this dimension.
    pub tile: u32,
}

/// The maximum number of dimensions of a tensor.
const MOST_DIMENSIONS: usize = 5;

impl TensorTile {
    /// Describes tiles of a tensor with `N` dimensions, 1 to 5, and elements of 1, 2, 4 or 8 bytes.
    pub const fn new<const N: usize>(
        address: u64,
        element_bytes: u32,
        pattern: TilePattern,
        dimensions: [TileDimension; N],
    ) -> TensorTile {
        const { assert!(N >= 1 && N <= MOST_DIMENSIONS) }
        let mut all = [TileDimension { size: 1, stride: 0, tile: 1 }; MOST_DIMENSIONS];
        let mut i = 0;
        while i < N {
            all[i] = dimensions[i];
            i += 1;
        }
        TensorTile { address, element_bytes, pattern, rank: N, dimensions: all }
    }

    /// Returns the address of the first element.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size of an element in bytes.
    pub const fn element_bytes(&self) -> u32 {
        self.element_bytes
    }

    /// Returns the order of a tile in shared memory.
    pub const fn pattern(&self) -> TilePattern {
        self.pattern
    }

    /// Returns the dimensions, innermost first.
    pub fn dimensions(&self) -> &[TileDimension] {
        &self.dimensions[..self.rank]
    }
}
