//! NEON with dot products of bytes: sixteen rows are in four registers.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use bytemuck::must_cast;

use super::{Lanes, WithLanes};
use crate::pages::Line;
use crate::quantised::layout::ROWS;

/// Exists only if the processor has dot products of bytes (`dotprod`). All aarch64 processors have the rest of NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    pub(super) fn new() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Neon(()))
    }

    pub(super) fn run(self, work: impl WithLanes) {
        // SAFETY: this value exists only if the processor has the instructions that the function is compiled for.
        unsafe { run(self, work) }
    }
}

#[target_feature(enable = "neon,dotprod")]
fn run(lanes: Neon, work: impl WithLanes) {
    work.run(lanes);
}

/// Computes `sum + a . b` over four signed bytes per lane. The intrinsic function is not stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction accesses only these registers, and the function is compiled for it.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Calls intrinsics of NEON and `sdot`.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: all aarch64 processors have NEON, and `self` exists only if the processor has `dotprod`. The
        // instruction has no other requirement: it reads and writes no memory.
        unsafe { $call }
    };
}

type Four<T> = [T; 4];

/// Evaluates an expression for each of the four registers. A closure might not be compiled for the instruction set.
macro_rules! each {
    ($i:ident => $value:expr) => {
        [
            {
                let $i = 0;
                $value
            },
            {
                let $i = 1;
                $value
            },
            {
                let $i = 2;
                $value
            },
            {
                let $i = 3;
                $value
            },
        ]
    };
}

impl Neon {
    /// Widens sixteen f16 numbers.
    #[inline(always)]
    fn widen_halves(self, [low, high]: [uint16x8_t; 2]) -> Four<float32x4_t> {
        let fours = instruction!([vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)]);
        each!(i => instruction!(vcvt_f32_f16(vreinterpret_f16_u16(fours[i]))))
    }
}

impl Lanes for Neon {
    type Bytes = Four<uint8x16_t>;
    type Ints = Four<int32x4_t>;
    type Floats = Four<float32x4_t>;
    // Sums, bytes and a token's word take 21 of 32 registers.
    const TOKENS: usize = 4;

    #[inline(always)]
    fn load(self, line: &Line) -> Four<uint8x16_t> {
        must_cast(line.0)
    }

    #[inline(always)]
    fn bits(self, bytes: Four<uint8x16_t>, shift: usize, mask: u8) -> Four<uint8x16_t> {
        // A shift by a negative number shifts to the right.
        let right = instruction!(vdupq_n_s8(-(shift as i8)));
        each!(i => instruction!(vandq_u8(vshlq_u8(bytes[i], right), vdupq_n_u8(mask))))
    }

    #[inline(always)]
    fn join(self, low: Four<uint8x16_t>, high: Four<uint8x16_t>, shift: usize) -> Four<uint8x16_t> {
        let left = instruction!(vdupq_n_s8(shift as i8));
        each!(i => instruction!(vorrq_u8(low[i], vshlq_u8(high[i], left))))
    }

    #[inline(always)]
    fn dot(self, sum: Four<int32x4_t>, bytes: Four<uint8x16_t>, x: i32) -> Four<int32x4_t> {
        let x = instruction!(vreinterpretq_s8_s32(vdupq_n_s32(x)));
        each!(i => instruction!(sdot(sum[i], vreinterpretq_s8_u8(bytes[i]), x)))
    }

    /// Converts to signed bytes.
    #[inline(always)]
    fn wide(self, line: &Line) -> Four<uint8x16_t> {
        let bytes = self.load(line);
        each!(i => instruction!(veorq_u8(bytes[i], vdupq_n_u8(0x80))))
    }

    #[inline(always)]
    fn look_up(self, bytes: Four<uint8x16_t>, table: [i8; 16]) -> Four<uint8x16_t> {
        each!(i => instruction!(vqtbl1q_u8(must_cast(table), bytes[i])))
    }

    #[inline(always)]
    fn begin_wide(self, _: i32) -> Four<int32x4_t> {
        self.splat(0)
    }

    #[inline(always)]
    fn dot_wide(self, sum: Four<int32x4_t>, bytes: Four<uint8x16_t>, x: i32) -> Four<int32x4_t> {
        self.dot(sum, bytes, x)
    }

    #[inline(always)]
    fn splat(self, x: i32) -> Four<int32x4_t> {
        [instruction!(vdupq_n_s32(x)); 4]
    }

    #[inline(always)]
    fn widen(self, x: &[u8; ROWS]) -> Four<int32x4_t> {
        let x: uint8x16_t = must_cast(*x);
        let wide = instruction!({
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
        });
        each!(i => instruction!(vreinterpretq_s32_u32(wide[i])))
    }

    #[inline(always)]
    fn widen_signed(self, x: &[u8; ROWS]) -> Four<int32x4_t> {
        let x: int8x16_t = must_cast(*x);
        instruction!({
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        })
    }

    #[inline(always)]
    fn multiply(self, a: Four<int32x4_t>, b: Four<int32x4_t>, c: Four<int32x4_t>) -> Four<int32x4_t> {
        each!(i => instruction!(vmlaq_s32(c[i], a[i], b[i])))
    }

    #[inline(always)]
    fn pairs(self, first: &[u8; ROWS], second: &[u8; ROWS]) -> Four<int32x4_t> {
        let (first, second) = (self.widen(first), self.widen(second));
        each!(i => instruction!(vorrq_s32(first[i], vshlq_n_s32::<16>(second[i]))))
    }

    #[inline(always)]
    fn dot_pairs(self, sum: Four<int32x4_t>, a: Four<int32x4_t>, x: i32) -> Four<int32x4_t> {
        let x = instruction!(vreinterpretq_s16_s32(vdupq_n_s32(x)));
        each!(i => instruction!({
            let a = vreinterpretq_s16_s32(a[i]);
            let (low, high) = (vmull_s16(vget_low_s16(a), vget_low_s16(x)), vmull_high_s16(a, x));
            vaddq_s32(sum[i], vpaddq_s32(low, high))
        }))
    }

    #[inline(always)]
    fn zeros(self) -> Four<float32x4_t> {
        [instruction!(vdupq_n_f32(0.0)); 4]
    }

    #[inline(always)]
    fn halves(self, x: &[u16; ROWS]) -> Four<float32x4_t> {
        self.widen_halves(must_cast(*x))
    }

    #[inline(always)]
    fn floats(self, x: &[f32; ROWS]) -> Four<float32x4_t> {
        must_cast(*x)
    }

    #[inline(always)]
    fn half_powers(self, x: &[u8; ROWS]) -> Four<float32x4_t> {
        let x = self.widen(x);
        // The first is the result's bits if it is normal. It is then greater than the second.
        each!(i => {
            instruction!(vreinterpretq_f32_s32(vmaxq_s32(
                vshlq_n_s32::<23>(vsubq_s32(x[i], vdupq_n_s32(1))),
                vshlq_s32(vdupq_n_s32(0x0020_0000), vminq_s32(x[i], vdupq_n_s32(1)))
            )))
        })
    }

    #[inline(always)]
    fn fp8(self, codes: &[u8; ROWS]) -> Four<float32x4_t> {
        // Sign extension puts the sign into the highest bit of the half. The mask clears its copy in the next bit.
        let codes: int8x16_t = must_cast(*codes);
        let codes = instruction!([vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)]);
        let half =
            |i: usize| instruction!(vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16::<7>(codes[i])), vdupq_n_u16(0xbfff)));
        self.widen_halves([half(0), half(1)])
    }

    #[inline(always)]
    fn mul_add_one(self, a: Four<float32x4_t>, b: f32, c: Four<float32x4_t>) -> Four<float32x4_t> {
        each!(i => instruction!(vfmaq_n_f32(c[i], a[i], b)))
    }

    #[inline(always)]
    fn fused(self, a: Four<float32x4_t>, b: Four<float32x4_t>, c: Four<float32x4_t>) -> Four<float32x4_t> {
        each!(i => instruction!(vfmaq_f32(c[i], a[i], b[i])))
    }

    #[inline(always)]
    fn mul(self, a: Four<float32x4_t>, b: f32) -> Four<float32x4_t> {
        each!(i => instruction!(vmulq_n_f32(a[i], b)))
    }

    #[inline(always)]
    fn mul_add(self, a: Four<int32x4_t>, b: Four<float32x4_t>, c: Four<float32x4_t>) -> Four<float32x4_t> {
        each!(i => instruction!(vfmaq_f32(c[i], vcvtq_f32_s32(a[i]), b[i])))
    }

    #[inline(always)]
    fn to_array(self, x: Four<float32x4_t>) -> [f32; ROWS] {
        must_cast(x)
    }
}
