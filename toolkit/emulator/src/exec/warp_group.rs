//! `wgmma`: products of a warp group, with factors in shared memory.
//!
//! Each warp of the group computes the sixteen rows that are its own, at the latest moment: when it waits for the group of
//! products.

use super::machine::Machine;
use super::product::{DEPTH, Factors, multiply_add};
use super::tensor::{first_factor, load_sums, store_sums};
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Registers;
use crate::program::{FirstFactor, Op, Product};
use crate::tensor_map::Swizzle;

/// A matrix descriptor: where the core matrices of a factor lie, eight rows of 16 bytes each.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    start: usize,
    /// Leading and stride dimension byte offset.
    leading: usize,
    stride: usize,
    swizzle: Swizzle,
    /// Rows run along memory (the factor is "MN-major"); else the depth does.
    transposed: bool,
}

impl Descriptor {
    fn decode(bits: u64, transposed: bool) -> Checked<Self> {
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

    /// Offset in shared memory of eight neighbours: of the depth from `8 * part` on in row `index`; or, transposed, of the rows
    /// from `8 * part` on at depth `index`.
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

    /// All pieces of rows `first` to `first + count` over the depth.
    fn pieces(self, first: usize, count: usize) -> impl Iterator<Item = usize> {
        let (indices, parts) = if self.transposed {
            (0..DEPTH, first / 8..(first + count) / 8)
        } else {
            (first..first + count, 0..DEPTH / 8)
        };
        indices.flat_map(move |index| parts.clone().map(move |part| self.piece(index, part)))
    }
}

/// Flips the signs of halves.
fn negate<const S: usize>(bits: &mut [[u16; S]; DEPTH], negates: bool) {
    if negates {
        bits.iter_mut().flatten().for_each(|bits| *bits ^= 0x8000);
    }
}

/// A factor of a product in shared memory: its descriptor, and the rows (or columns) that the warp needs.
#[derive(Clone, Copy, Debug)]
struct Tile {
    descriptor: Descriptor,
    first: usize,
    count: usize,
}

impl Tile {
    fn pieces(self) -> impl Iterator<Item = usize> {
        self.descriptor.pieces(self.first, self.count)
    }

    /// The bits of `S` rows from `first` on, by depth.
    fn read<const S: usize>(&self, memory: &[u8], first: usize) -> [[u16; S]; DEPTH] {
        let mut bits = [[0; S]; DEPTH];
        let mut pieces = self.descriptor.pieces(first, S);
        let (indices, parts) = if self.descriptor.transposed { (DEPTH, S / 8) } else { (S, DEPTH / 8) };
        for index in 0..indices {
            for part in 0..parts {
                let at = pieces.next().unwrap_or(0);
                for (element, bytes) in memory[at..at + 16].chunks_exact(2).enumerate() {
                    let along = part * 8 + element;
                    let (k, row) = if self.descriptor.transposed { (index, along) } else { (along, index) };
                    bits[k][row] = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
            }
        }
        bits
    }
}

/// A product that was started.
#[derive(Debug)]
pub(super) struct PendingProduct {
    /// The instruction.
    pc: usize,
    a: Option<Tile>,
    b: Tile,
    adds: bool,
    /// Groups that were committed since, its own included.
    groups: u32,
}

impl PendingProduct {
    fn pieces(&self) -> impl Iterator<Item = usize> {
        self.a.into_iter().flat_map(Tile::pieces).chain(self.b.pieces())
    }
}

impl Warp {
    /// Closes the group of the products started.
    pub(super) fn commit_products(&mut self) {
        self.products.iter_mut().for_each(|product| product.groups += 1);
    }
}

impl Machine<'_> {
    pub(super) fn start_product(&mut self, warp: &mut Warp, product: &Product) -> Checked<()> {
        if warp.live != u32::MAX {
            return Err(Violation::new(FaultKind::MissingLanes, "a product of a warp group needs all 32 lanes"));
        }
        if !warp.product_fence {
            let message = "a product of a warp group with no `wgmma.fence` before it";
            return Err(Violation::new(FaultKind::AsyncRegion, message));
        }
        let descriptor = |slot: u32, transposed| Descriptor::decode(warp.registers.wides[slot as usize][0], transposed);
        let a = match product.a {
            FirstFactor::Registers(_) => None,
            FirstFactor::Descriptor { slot, transposed } => {
                Some(Tile { descriptor: descriptor(slot, transposed)?, first: warp.id % 4 * 16, count: 16 })
            }
        };
        let b = Tile { descriptor: descriptor(product.b.0, product.b.1)?, first: 0, count: product.columns };
        let predicate = |slot: u32| warp.registers.masks[slot as usize] & 1 == 1;
        let adds = product.accumulates.is_none_or(|(slot, negated)| predicate(slot) != negated);
        let pending = PendingProduct { pc: self.pc, a, b, adds, groups: 0 };
        for at in pending.pieces() {
            let at = self.block.shared.locate(at as u64, 16)?;
            self.block.shared.start_async_read(at, 16, Self::who(warp, 0, false))?;
        }
        self.stats[self.pc].tensor_flops += (2 * 16 * DEPTH * product.columns) as u64;
        warp.products.push_back(pending);
        Ok(())
    }

    /// Computes all groups of products but the latest `pending`.
    pub(super) fn wait_products(&mut self, warp: &mut Warp, pending: u32) {
        while warp.products.front().is_some_and(|product| product.groups > pending) {
            let Some(ending) = warp.products.pop_front() else { return };
            if let Op::Product(product) = &self.kernel.code[ending.pc].op {
                compute(&mut warp.registers, &self.block.shared.data, product, &ending);
            }
            for at in ending.pieces() {
                self.block.shared.end_async_read(at, 16, Self::who(warp, 0, false));
            }
        }
    }
}

fn compute(registers: &mut Registers, memory: &[u8], product: &Product, pending: &PendingProduct) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2(registers: &mut Registers, memory: &[u8], product: &Product, pending: &PendingProduct) {
            multiply(registers, memory, product, pending);
        }
        if crate::lanes::has_avx2() {
            // SAFETY: the features the function needs have just been found.
            unsafe { avx2(registers, memory, product, pending) };
            return;
        }
    }
    multiply(registers, memory, product, pending);
}

#[inline(always)]
fn multiply(registers: &mut Registers, memory: &[u8], product: &Product, pending: &PendingProduct) {
    let mut a = match (&product.a, &pending.a) {
        (FirstFactor::Registers(slots), _) => first_factor(registers, slots),
        (_, Some(tile)) => tile.read(memory, tile.first),
        (_, None) => [[0; 16]; DEPTH],
    };
    negate(&mut a, product.negates[0]);
    let a = Factors::new(product.factor, a);
    // Eight columns lie in four registers, or in two of packed halves.
    let width = if product.half_sum { 2 } else { 4 };
    for (group, slots) in product.d.chunks_exact(width).enumerate() {
        let mut b = pending.b.read(memory, group * 8);
        negate(&mut b, product.negates[1]);
        let mut sums = [[0f32; 8]; 16];
        if pending.adds {
            load_sums(registers, slots, product.half_sum, &mut sums);
        }
        multiply_add(product.factor, &a, &Factors::new(product.factor, b), &mut sums);
        store_sums(registers, slots, product.half_sum, &sums);
    }
}
