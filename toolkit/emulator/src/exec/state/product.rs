//! Products of a warp group (`wgmma`) in flight, and the layout of their factors in shared memory.

use super::async_reads::Region;
use crate::exec::tensor_core::{Bits, DEPTH};
use crate::fault::{Checked, FaultKind, Violation};
use crate::tensor_map::Swizzle;

/// A matrix descriptor: the layout of a factor's core matrices, which have eight rows of 16 bytes each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    /// The offset of the first core matrix in shared memory.
    start: usize,
    /// Bytes from eight rows to the next eight. If the factor is transposed, bytes from eight steps of depth to the
    /// next eight.
    down: usize,
    /// Bytes from one core matrix to the next across, beyond the end of the swizzle's pattern.
    across: usize,
    swizzle: Swizzle,
    /// Whether rows run along memory (the factor is "MN-major"). Otherwise the depth does.
    transposed: bool,
}

impl Descriptor {
    /// Decodes a descriptor.
    pub fn decode(bits: u64, transposed: bool) -> Checked<Self> {
        let field = |at: u32| ((bits >> at & 0x3fff) << 4) as usize;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        if bits >> 49 & 7 != 0 {
            return Err(Violation::new(FaultKind::Unsupported, "a matrix descriptor with a base offset"));
        }
        // These are the "leading dimension byte offset" and the "stride dimension byte offset".
        let (leading, stride) = (field(16), field(32));
        let swaps = transposed && swizzle == Swizzle::None;
        let (down, across) = if swaps { (leading, stride) } else { (stride, leading) };
        Ok(Self { start: field(0), down, across, swizzle, transposed })
    }

    /// Returns the offset in shared memory of eight contiguous elements.
    ///
    /// They are in row `index` and start at depth `8 * part`. If the factor is transposed, they are at depth `index`
    /// and start at row `8 * part`.
    #[inline(always)]
    fn piece(&self, index: usize, part: usize) -> usize {
        // The binary logarithm of the pieces in a row of the swizzle's pattern.
        let pieces = self.swizzle as usize;
        let (down, across) = (index / 8 * self.down, (part >> pieces) * self.across);
        let within = ((index % 8) << pieces) + (part & ((1 << pieces) - 1));
        self.swizzle.apply(self.start + down + across + 16 * within)
    }

    /// Returns the offsets of all pieces of the rows from `first` to `first + count`.
    pub fn pieces(self, first: usize, count: usize) -> impl Iterator<Item = usize> + Clone {
        let (indices, parts) = if self.transposed {
            (0..DEPTH, first / 8..(first + count) / 8)
        } else {
            (first..first + count, 0..DEPTH / 8)
        };
        indices.flat_map(move |index| parts.clone().map(move |part| self.piece(index, part)))
    }
}

/// The rows (or columns) of a factor in shared memory that a warp needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// The layout of the factor.
    pub descriptor: Descriptor,
    /// The first row that the warp needs.
    pub first: usize,
    /// The number of rows that the warp needs.
    pub count: usize,
}

impl Tile {
    /// Returns the offsets of the pieces of these rows.
    pub fn pieces(self) -> impl Iterator<Item = usize> + Clone {
        self.descriptor.pieces(self.first, self.count)
    }

    /// Reads the bits of `S` rows starting at `first`, by row and depth. `position` gives the index of each row in
    /// `bits`.
    #[inline(always)]
    pub fn read<const S: usize>(
        &self,
        memory: &[u8],
        first: usize,
        position: impl Fn(usize) -> usize,
        bits: &mut Bits<S>,
    ) {
        let descriptor = self.descriptor;
        let piece = |index: usize, part: usize| -> [u16; 8] {
            let (at, mut bytes) = (descriptor.piece(index, part), [0; 16]);
            bytes.copy_from_slice(&memory[at..at + 16]);
            std::array::from_fn(|half| u16::from_le_bytes([bytes[2 * half], bytes[2 * half + 1]]))
        };
        if descriptor.transposed {
            for (k, part) in (0..DEPTH).flat_map(|k| (0..S / 8).map(move |part| (k, part))) {
                for (row, element) in piece(k, first / 8 + part).into_iter().enumerate() {
                    bits[position(part * 8 + row)][k] = element;
                }
            }
        } else {
            for row in 0..S {
                for (part, bits) in bits[position(row)].chunks_exact_mut(8).enumerate() {
                    bits.copy_from_slice(&piece(first + row, part));
                }
            }
        }
    }
}

/// A product of a warp group that is in flight.
#[derive(Debug)]
pub(crate) struct PendingProduct {
    /// The index of its instruction.
    pub pc: usize,
    /// The first factor, if it is in shared memory.
    pub a: Option<Tile>,
    /// The second factor.
    pub b: Tile,
    /// Whether the product is added to the sums, or replaces them.
    pub adds: bool,
    /// Groups that were closed since it started, its own included.
    pub groups: u32,
    /// Regions of shared memory that it reads.
    pub reads: Vec<Region>,
}
