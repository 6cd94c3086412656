//! Tensors whose tiles kernels copy.

use crate::ptx::pattern::TilePattern;

/// A tensor in the device's memory, and the tiles of it that a kernel copies: what `&CuTensorMap` among its parameters is on
/// the host. The launch has the driver make the map, and is refused if the driver does not take it.
///
/// Dimensions are listed innermost first. Address and strides are multiples of 16 bytes, and so is a tile's innermost
/// dimension, which is no longer than its pattern; a tile has at most 256 elements along each dimension.
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
    /// Elements of the tensor.
    pub size: u64,
    /// Bytes from one element to the next. Elements of the innermost dimension follow each other, whatever stands here.
    pub stride: u64,
    /// Elements of a tile.
    pub tile: u32,
}

/// The most dimensions that a tensor can have.
const MOST_DIMENSIONS: usize = 5;

impl TensorTile {
    /// Tiles of a tensor of `N` dimensions, 1 to 5, whose elements have 1, 2, 4 or 8 bytes.
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

    /// The address of the first element.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of an element.
    pub const fn element_bytes(&self) -> u32 {
        self.element_bytes
    }

    /// The order of a tile in shared memory.
    pub const fn pattern(&self) -> TilePattern {
        self.pattern
    }

    /// The dimensions, innermost first.
    pub fn dimensions(&self) -> &[TileDimension] {
        &self.dimensions[..self.rank]
    }
}
