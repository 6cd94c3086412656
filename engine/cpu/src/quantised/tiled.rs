//! Products of one band of a weight with many tokens, using the tiles of AMX.
//!
//! A tile computes the integer sums of a group for sixteen tokens and the band's rows. The sums go through memory and
//! are multiplied by the group's scales in the same order as in `dots`, so the result is the same to the bit. While the
//! sums of one group are scaled, the tiles multiply the next group.

#![allow(clippy::needless_range_loop)] // as in `dots`

use std::cell::RefCell;

use super::activations::BLOCK;
use super::bits::{Bits, Codes, FiveBits, Fp4, Nibbles, NonLinear, Wide};
use super::dots::Band;
use super::lanes::avx512::Avx512;
use super::lanes::{Isa, Lanes, WithLanes};
use super::layout::{PART, Packing};
use super::packed::PackedBand;
use super::scales::{GroupScale, Half, HalfAndMinimum, Power};
use crate::amx::{Amx, ByteSums, Tiles};
use crate::pages::Line;
use checkpoint::quantised::QuantType;

/// Up to this many tokens are left to vectors. A block of tiles costs the same for any number of tokens.
const VECTOR_TOKENS: usize = 8;
/// Lines of a part with one byte per integer.
const LINES: usize = PART / 4;

/// Whether groups of this type consist of one part, and all have the same zero.
pub(super) const fn has_plain_groups(kind: QuantType) -> bool {
    kind.group() == PART && !matches!(kind, QuantType::Int4G32 | QuantType::Fp8G32)
}

thread_local! {
    static LINES_OF_BAND: RefCell<Vec<[Line; LINES]>> = RefCell::default();
}

/// The proof that AMX tiles are configured, and the vectors that scale their sums.
pub(super) struct Tiled {
    tiles: Tiles,
    lanes: Avx512,
}

/// A band whose groups consist of one part, and the tokens to multiply it with.
struct TiledBand<'a, 'b> {
    band: Band<'a, 'b>,
    tiles: &'a Tiles,
    /// A buffer for the band's integers as signed bytes.
    lines: &'a mut Vec<[Line; LINES]>,
}

impl Tiled {
    /// Returns `None` if vectors should multiply this number of tokens with a weight of this type.
    pub fn new(amx: Option<Amx>, isa: Isa, kind: QuantType, tokens: usize) -> Option<Self> {
        let fits = has_plain_groups(kind) && tokens > VECTOR_TOKENS;
        let (amx, lanes) = (amx.filter(|_| fits)?, isa.avx512()?);
        Some(Tiled { tiles: amx.tiles(), lanes })
    }

    pub fn run(&self, band: Band<'_, '_>) {
        LINES_OF_BAND.with_borrow_mut(|lines| {
            let mut tiled = TiledBand { band, tiles: &self.tiles, lines };
            let mut done = 0;
            self.lanes.compiled(
                #[inline(always)]
                || {
                    done = match tiled.band.weight.kind {
                        QuantType::Q8_0 => tiled.run::<Wide, Half>(self.lanes),
                        QuantType::Q4_0 => tiled.run::<Nibbles, Half>(self.lanes),
                        QuantType::Q4_1 => tiled.run::<Nibbles, HalfAndMinimum>(self.lanes),
                        QuantType::Q5_0 => tiled.run::<FiveBits, Half>(self.lanes),
                        QuantType::Q5_1 => tiled.run::<FiveBits, HalfAndMinimum>(self.lanes),
                        QuantType::IQ4_NL => tiled.run::<Codes<NonLinear>, Half>(self.lanes),
                        QuantType::MXFP4 => tiled.run::<Codes<Fp4>, Power>(self.lanes),
                        _ => 0,
                    };
                },
            );
            self.lanes.run_from(tiled.band, done);
        });
    }
}

impl TiledBand<'_, '_> {
    /// Computes the sums of most tokens, like [`Band`]. Returns the number of these tokens.
    #[inline(always)]
    fn run<B: Bits, S: GroupScale>(&mut self, lanes: Avx512) -> usize {
        let weight = self.band.weight;
        self.lines.resize(S::entries(&weight).len(), [Line([0; 64]); LINES]);
        for (to, from) in self.lines.iter_mut().zip(weight.lines.chunks_exact(weight.kind.lines())) {
            for chunk in 0..LINES {
                to[chunk] = lanes.signed(B::chunk(lanes, from, chunk), B::zero(weight.kind));
            }
        }
        let mut token = 0;
        while self.band.count() - token > VECTOR_TOKENS && !self.lines.is_empty() {
            let sums = self.block::<S>(lanes, weight, token);
            self.band.rows.finish(lanes, sums, token);
            token = self.band.count().min(token + BLOCK);
        }
        token
    }

    /// Returns the sums of the block that begins with `token`. If the block has fewer than sixteen tokens, the other
    /// sums are unspecified.
    #[inline(always)]
    fn block<S: GroupScale>(
        &self,
        lanes: Avx512,
        weight: PackedBand<'_>,
        token: usize,
    ) -> [<Avx512 as Lanes>::Floats; BLOCK] {
        let x = self.band.x.block(self.band.first + token);
        let mut totals = [lanes.zeros(); BLOCK];
        let mut sums = [const { ByteSums([[0; 16]; BLOCK]) }; 2];
        let [mut now, mut next] = sums.each_mut();
        let groups = self.lines.len();
        self.tiles.multiply_bytes(x.words(0), &self.lines[0], now);
        for (group, entry) in S::entries(&weight).iter().enumerate() {
            if group + 1 < groups {
                self.tiles.multiply_bytes(x.words(group + 1), &self.lines[group + 1], next);
            }
            let (scale, x_scales) = (S::scale(lanes, entry), x.scales::<BLOCK>(group));
            scaled::<0>(lanes, now, scale, x_scales, &mut totals);
            scaled::<4>(lanes, now, scale, x_scales, &mut totals);
            scaled::<8>(lanes, now, scale, x_scales, &mut totals);
            scaled::<12>(lanes, now, scale, x_scales, &mut totals);
            if const { S::HAS_MINIMUM } {
                let (minimum, x_sums) = (S::minimum(lanes, entry), x.sums::<BLOCK>(group));
                for t in 0..BLOCK {
                    let x_sum = lanes.splat(x_sums[t]);
                    totals[t] = lanes.mul_add(x_sum, lanes.mul(minimum, -x_scales[t]), totals[t]);
                }
            }
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
