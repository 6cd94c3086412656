//! Products of one band of a weight with many tokens, using the tiles of AMX.
//!
//! A tile computes the integer sums of a group for sixteen tokens and the band's rows. The sums go through memory and
//! are multiplied by the group's scales in the same order as in `dots`, so the result is the same to the bit. While the
//! sums of one group are scaled, the tiles multiply the next group.

#![allow(clippy::needless_range_loop)] // as in `dots`

use std::cell::RefCell;

use super::activations::BLOCK;
use super::dots::Band;
use super::lanes::avx512::Avx512;
use super::lanes::{Isa, Lanes, WithLanes};
use super::packed::Packing;
use super::packed::{PART, PackedBand};
use crate::amx::{Amx, ByteSums, Tiles};
use crate::pages::Line;
use checkpoint::quantised::QuantType;

/// Up to this many tokens are left to vectors. A block of tiles costs the same for any number of tokens.
const VECTOR_TOKENS: usize = 8;
/// Lines of a part with one byte per integer.
const LINES: usize = PART / 4;

thread_local! {
    static LINES_OF_BAND: RefCell<Vec<[Line; LINES]>> = RefCell::default();
}

/// The proof that AMX tiles are configured, and the vectors that scale their sums.
pub(super) struct Tiled {
    tiles: Tiles,
    lanes: Avx512,
}

/// A band whose groups consist of one part with one scale, and the tokens to multiply it with.
struct TiledBand<'a, 'b> {
    band: Band<'a, 'b>,
    tiles: &'a Tiles,
    /// A buffer for the band's integers as signed bytes.
    lines: &'a mut Vec<[Line; LINES]>,
}

impl Tiled {
    /// Returns `None` if vectors should multiply this number of tokens with a weight of this type.
    pub fn new(amx: Option<Amx>, isa: Isa, kind: QuantType, tokens: usize) -> Option<Self> {
        let fits = matches!(kind, QuantType::Q8_0 | QuantType::Q4_0) && tokens > VECTOR_TOKENS;
        let (amx, lanes) = (amx.filter(|_| fits)?, isa.avx512()?);
        Some(Tiled { tiles: amx.tiles(), lanes })
    }

    pub fn run(&self, band: Band<'_, '_>) {
        LINES_OF_BAND.with_borrow_mut(|lines| {
            let tiled = TiledBand { band, tiles: &self.tiles, lines };
            self.lanes.compiled(
                #[inline(always)]
                || tiled.run(self.lanes),
            );
        });
    }
}

impl TiledBand<'_, '_> {
    /// Computes the sums of all tokens, like [`Band`].
    #[inline(always)]
    fn run(mut self, lanes: Avx512) {
        let weight = self.band.weight;
        self.lines.resize(weight.scales.len(), [Line([0; 64]); LINES]);
        for (to, from) in self.lines.iter_mut().zip(weight.lines.chunks_exact(weight.kind.lines())) {
            if weight.kind == QuantType::Q8_0 { widen(from, to) } else { unpack(from, to) }
        }
        let mut token = 0;
        while self.band.count() - token > VECTOR_TOKENS && !self.lines.is_empty() {
            let sums = self.block(lanes, weight, token);
            self.band.rows.finish(lanes, sums, token);
            token = self.band.count().min(token + BLOCK);
        }
        self.band.run_from(lanes, token);
    }

    /// Returns the sums of the block that begins with `token`. If the block has fewer than sixteen tokens, the other
    /// sums are unspecified.
    #[inline(always)]
    fn block(&self, lanes: Avx512, weight: PackedBand<'_>, token: usize) -> [<Avx512 as Lanes>::Floats; BLOCK] {
        let x = self.band.x.block(self.band.first + token);
        let mut totals = [lanes.zeros(); BLOCK];
        let mut sums = [const { ByteSums([[0; 16]; BLOCK]) }; 2];
        let [mut now, mut next] = sums.each_mut();
        let groups = self.lines.len();
        self.tiles.multiply_bytes(x.words(0), &self.lines[0], now);
        for group in 0..groups {
            if group + 1 < groups {
                self.tiles.multiply_bytes(x.words(group + 1), &self.lines[group + 1], next);
            }
            let (scale, x_scales) = (lanes.halves(&weight.scales[group]), x.scales::<BLOCK>(group));
            scaled::<0>(lanes, now, scale, x_scales, &mut totals);
            scaled::<4>(lanes, now, scale, x_scales, &mut totals);
            scaled::<8>(lanes, now, scale, x_scales, &mut totals);
            scaled::<12>(lanes, now, scale, x_scales, &mut totals);
            std::mem::swap(&mut now, &mut next);
        }
        totals
    }
}

/// Adds the sums of four tokens times their scales. The loop is short enough to be unrolled, which keeps the totals in
/// registers.
#[inline(always)]
fn scaled<const FIRST: usize>(
    lanes: Avx512,
    sums: &ByteSums,
    scale: <Avx512 as Lanes>::Floats,
    x_scales: &[f32; BLOCK],
    totals: &mut [<Avx512 as Lanes>::Floats; BLOCK],
) {
    for t in FIRST..FIRST + 4 {
        totals[t] = lanes.mul_add(lanes.ints(&sums.0[t]), lanes.mul(scale, x_scales[t]), totals[t]);
    }
}

/// Converts 8-bit integers with an offset of 128 to signed bytes.
#[inline(always)]
fn widen(from: &[Line], to: &mut [Line; LINES]) {
    for (to, from) in to.iter_mut().zip(from) {
        for i in 0..64 {
            to.0[i] = from.0[i] ^ 0x80;
        }
    }
}

/// Converts 4-bit integers with an offset of 8 to signed bytes.
#[inline(always)]
fn unpack(from: &[Line], to: &mut [Line; LINES]) {
    for (chunk, from) in from.iter().enumerate() {
        for i in 0..64 {
            to[chunk].0[i] = (from.0[i] & 15).wrapping_sub(8);
            to[chunk + LINES / 2].0[i] = (from.0[i] >> 4).wrapping_sub(8);
        }
    }
}
