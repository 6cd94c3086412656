//! Products of a warp group (`wgmma`) that have not ended, and where their factors lie in shared memory.

use super::async_reads::Region;
use crate::exec::tensor_core::{Bits, DEPTH};
use crate::fault::{Checked, FaultKind, Violation};
use crate::tensor_map::Swizzle;

/// A matrix descriptor: where the core matrices of a factor lie, eight rows of 16 bytes each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    /// The offset in shared memory of the first one.
    start: usize,
    /// Bytes from eight rows to the next eight, or if the factor is transposed from eight steps of depth to the next.
    down: usize,
    /// Bytes from one core matrix to the next across, where the swizzle's pattern ends.
    across: usize,
    swizzle: Swizzle,
    /// Whether rows run along memory (the factor is "MN-major"). Otherwise the depth does.
    transposed: bool,
}

impl Descriptor {
    /// The descriptor of these bits.
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
        // The "leading dimension byte offset", and the "stride dimension byte offset".
        let (leading, stride) = (field(16), field(32));
        let swaps = transposed && swizzle == Swizzle::None;
        let (down, across) = if swaps { (leading, stride) } else { (stride, leading) };
        Ok(Self { start: field(0), down, across, swizzle, transposed })
    }

    /// The offset in shared memory of eight elements that lie side by side. They are those of row `index` from depth `8 * part`
    /// on, or if the factor is transposed those at depth `index` from row `8 * part` on.
    #[inline(always)]
    fn piece(&self, index: usize, part: usize) -> usize {
        // The pattern's rows have so many pieces, as a power of two.
        let pieces = self.swizzle as usize;
        let (down, across) = (index / 8 * self.down, (part >> pieces) * self.across);
        let within = ((index % 8) << pieces) + (part & ((1 << pieces) - 1));
        self.swizzle.apply(self.start + down + across + 16 * within)
    }

    /// The offsets of all pieces of the rows from `first` to `first + count`.
    pub fn pieces(self, first: usize, count: usize) -> impl Iterator<Item = usize> + Clone {
        let (indices, parts) = if self.transposed {
            (0..DEPTH, first / 8..(first + count) / 8)
        } else {
            (first..first + count, 0..DEPTH / 8)
        };
        indices.flat_map(move |index| parts.clone().map(move |part| self.piece(index, part)))
    }
}

/// A factor of a product in shared memory, of which a warp needs some rows (or columns).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Where the factor lies.
    pub descriptor: Descriptor,
    /// The first row that the warp needs.
    pub first: usize,
    /// How many rows the warp needs.
    pub count: usize,
}

impl Tile {
    /// The offsets of the pieces of these rows.
    pub fn pieces(self) -> impl Iterator<Item = usize> + Clone {
        self.descriptor.pieces(self.first, self.count)
    }

    /// Writes the bits of the `S` rows from `first` on, by row and depth. `position` says where each row comes among them.
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

/// A product of a warp group that has not ended.
#[derive(Debug)]
pub(crate) struct PendingProduct {
    /// The index of its instruction.
    pub pc: usize,
    /// The first factor, if it lies in shared memory.
    pub a: Option<Tile>,
    /// The second factor.
    pub b: Tile,
    /// Whether the product is added to the sums, or replaces them.
    pub adds: bool,
    /// Groups that were closed since, its own included.
    pub groups: u32,
    /// What it reads of shared memory.
    pub reads: Vec<Region>,
}
