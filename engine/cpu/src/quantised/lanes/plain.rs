//! Plain Rust, for processors without the instructions and as a reference in tests.

use checkpoint::quantised::half_power;
use half::f16;

use super::Lanes;
use crate::pages::Line;
use crate::quantised::layout::ROWS;

#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Lanes for Plain {
    type Bytes = [u8; 64];
    type Ints = [i32; ROWS];
    type Floats = [f32; ROWS];
    const TOKENS: usize = 2;

    fn load(self, line: &Line) -> [u8; 64] {
        line.0
    }

    fn bits(self, bytes: [u8; 64], shift: usize, mask: u8) -> [u8; 64] {
        bytes.map(|byte| byte >> shift & mask)
    }

    fn join(self, low: [u8; 64], high: [u8; 64], shift: usize) -> [u8; 64] {
        std::array::from_fn(|i| low[i] | high[i] << shift)
    }

    fn dot(self, sum: [i32; ROWS], bytes: [u8; 64], x: i32) -> [i32; ROWS] {
        let x = x.to_le_bytes().map(|x| i32::from(x as i8));
        std::array::from_fn(|row| sum[row] + (0..4).map(|i| i32::from(bytes[row * 4 + i]) * x[i]).sum::<i32>())
    }

    fn wide(self, line: &Line) -> [u8; 64] {
        line.0
    }

    fn look_up(self, bytes: [u8; 64], table: [i8; 16]) -> [u8; 64] {
        bytes.map(|byte| table[usize::from(byte)] as u8 ^ 0x80)
    }

    fn begin_wide(self, sum: i32) -> [i32; ROWS] {
        [-128 * sum; ROWS]
    }

    fn dot_wide(self, sum: [i32; ROWS], bytes: [u8; 64], x: i32) -> [i32; ROWS] {
        self.dot(sum, bytes, x)
    }

    fn splat(self, x: i32) -> [i32; ROWS] {
        [x; ROWS]
    }

    fn widen(self, x: &[u8; ROWS]) -> [i32; ROWS] {
        x.map(i32::from)
    }

    fn widen_signed(self, x: &[u8; ROWS]) -> [i32; ROWS] {
        x.map(|x| i32::from(x as i8))
    }

    fn multiply(self, a: [i32; ROWS], b: [i32; ROWS], c: [i32; ROWS]) -> [i32; ROWS] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    fn pairs(self, first: &[u8; ROWS], second: &[u8; ROWS]) -> [i32; ROWS] {
        std::array::from_fn(|i| i32::from(first[i]) | i32::from(second[i]) << 16)
    }

    fn dot_pairs(self, sum: [i32; ROWS], a: [i32; ROWS], x: i32) -> [i32; ROWS] {
        let halves = |pair: i32| [pair as i16, (pair >> 16) as i16].map(i32::from);
        let [low, high] = halves(x);
        std::array::from_fn(|i| sum[i] + halves(a[i])[0] * low + halves(a[i])[1] * high)
    }

    fn zeros(self) -> [f32; ROWS] {
        [0.0; ROWS]
    }

    fn halves(self, x: &[u16; ROWS]) -> [f32; ROWS] {
        x.map(|x| f16::from_bits(x).to_f32())
    }

    fn floats(self, x: &[f32; ROWS]) -> [f32; ROWS] {
        *x
    }

    fn half_powers(self, x: &[u8; ROWS]) -> [f32; ROWS] {
        x.map(half_power)
    }

    fn fp8(self, codes: &[u8; ROWS]) -> [f32; ROWS] {
        codes.map(|code| f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7).to_f32())
    }

    fn mul_add_one(self, a: [f32; ROWS], b: f32, c: [f32; ROWS]) -> [f32; ROWS] {
        std::array::from_fn(|i| a[i].mul_add(b, c[i]))
    }

    fn fused(self, a: [f32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    fn mul(self, a: [f32; ROWS], b: f32) -> [f32; ROWS] {
        a.map(|a| a * b)
    }

    fn mul_add(self, a: [i32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        std::array::from_fn(|i| (a[i] as f32).mul_add(b[i], c[i]))
    }

    fn to_array(self, x: [f32; ROWS]) -> [f32; ROWS] {
        x
    }
}
