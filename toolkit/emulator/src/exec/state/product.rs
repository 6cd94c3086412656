//! Products of a warp group (`wgmma`) that have not ended, and where their factors lie in shared memory.

use crate::exec::tensor_core::Bits;
use crate::exec::tensor_core::DEPTH;
use crate::fault::{Checked, FaultKind, Violation};
use crate::tensor_map::Swizzle;

/// A matrix descriptor: where the core matrices of a factor lie, eight rows of 16 bytes each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    /// The offset in shared memory of the first one.
    start: usize,
    /// The "leading dimension byte offset".
    leading: usize,
    /// The "stride dimension byte offset".
    stride: usize,
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
        Ok(Self { start: field(0), leading: field(16), stride: field(32), swizzle, transposed })
    }

    /// The offset in shared memory of eight elements that lie side by side. They are those of row `index` from depth `8 * part`
    /// on, or if the factor is transposed those at depth `index` from row `8 * part` on.
    fn piece(&self, index: usize, part: usize) -> usize {
        let span = self.swizzle.span();
        let (group, row) = (index / 8, index % 8 * span);
        let offset = match (self.swizzle, self.transposed) {
            (Swizzle::None, false) => group * self.stride + part * self.leading,
            (Swizzle::None, true) => group * self.leading + part * self.stride,
            (_, false) => group * self.stride + part * 16,
            (_, true) => group * self.stride + part * 16 / span * self.leading + part * 16 % span,
        };
        self.swizzle.apply(self.start + offset + row)
    }

    /// The offsets of all pieces of the rows from `first` to `first + count`.
    pub fn pieces(self, first: usize, count: usize) -> impl Iterator<Item = usize> {
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
    pub fn pieces(self) -> impl Iterator<Item = usize> {
        self.descriptor.pieces(self.first, self.count)
    }

    /// The bits of the `S` rows from `first` on, by row and depth.
    #[inline(always)]
    pub fn read<const S: usize>(&self, memory: &[u8], first: usize) -> Bits<S> {
        let (mut bits, descriptor) = ([[0; DEPTH]; S], self.descriptor);
        let piece = |index: usize, part: usize| {
            let at = descriptor.piece(index, part);
            let bytes = memory[at..at + 16].chunks_exact(2);
            bytes.map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
        };
        if descriptor.transposed {
            for (k, part) in (0..DEPTH).flat_map(|k| (0..S / 8).map(move |part| (k, part))) {
                for (row, element) in piece(k, first / 8 + part).enumerate() {
                    bits[part * 8 + row][k] = element;
                }
            }
        } else {
            for (row, bits) in bits.iter_mut().enumerate() {
                for (part, bits) in bits.chunks_exact_mut(8).enumerate() {
                    bits.iter_mut().zip(piece(first + row, part)).for_each(|(bits, element)| *bits = element);
                }
            }
        }
        bits
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
}

impl PendingProduct {
    /// The offsets in shared memory that it reads.
    pub fn pieces(&self) -> impl Iterator<Item = usize> {
        self.a.into_iter().flat_map(Tile::pieces).chain(self.b.pieces())
    }
}
