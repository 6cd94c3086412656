//! Conversions to f16 and bf16 that round down, up or toward zero, and conversions from integers.

use super::directed::{DOWN, UP, ZERO};
use super::types::{Type, with_integer};
use crate::lanes::{LaneOp, rare_lanes};
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use half::{bf16, f16};

/// Rounds to nearest even.
const NEAREST: u8 = 3;

/// Returns the bits of an exact value rounded to a half in a direction. `nearest` has the bits of the nearest half, and
/// `back` its value.
#[inline(always)]
fn step<const TO: u8>(value: f32, nearest: u16, back: f32) -> u16 {
    // Beyond the largest half, the nearest one is infinite, and the error still has the right sign.
    let lost = value - back;
    let down = lost < 0.0 && (TO == DOWN || TO == ZERO && value > 0.0);
    let up = lost > 0.0 && (TO == UP || TO == ZERO && value < 0.0);
    match (down || up, nearest & 0x7fff) {
        (false, _) => nearest,
        (true, 0) => u16::from(down) << 15 | 1,
        (true, _) if down == (nearest >> 15 == 0) => nearest - 1,
        (true, _) => nearest + 1,
    }
}

#[inline(always)]
fn to_f16<const TO: u8>(value: f32) -> f16 {
    let nearest = f32_to_f16(value);
    f16::from_bits(step::<TO>(value, nearest.to_bits(), f16_to_f32(nearest)))
}

#[inline(always)]
fn to_bf16<const TO: u8>(value: f32) -> bf16 {
    let nearest = f32_to_bf16(value);
    bf16::from_bits(step::<TO>(value, nearest.to_bits(), bf16_to_f32(nearest)))
}

/// Converts an integer of at most 64 bits to f32, with the last bit set if the result is inexact. A second rounding in
/// any direction is then correct.
#[inline(always)]
fn odd(value: i128) -> f32 {
    let size = value.unsigned_abs() as u64;
    let cut = 40u32.saturating_sub(size.leading_zeros());
    let kept = size >> cut;
    let kept = kept | u64::from(kept << cut != size);
    let size = kept as f32 * (1u64 << cut) as f32;
    if value < 0 { -size } else { size }
}

/// Returns the conversion of `cvt.<rounding>.<to>.<from>` from an integer to a half.
pub(super) fn half_from_integer(rounding: &str, to: Type, from: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($s:ty, $to:ident) => {
            match to {
                Type::F16 => rare_lanes!(|a: $s| -> f16 { to_f16::<$to>(odd(a.into())) }),
                Type::Bf16 => rare_lanes!(|a: $s| -> bf16 { to_bf16::<$to>(odd(a.into())) }),
                _ => return None,
            }
        };
    }
    macro_rules! by_source {
        ($to:ident) => {
            with_integer!(from, op, $to)
        };
    }
    Some(match rounding {
        "rn" => by_source!(NEAREST),
        "rm" => by_source!(DOWN),
        "rp" => by_source!(UP),
        "rz" => by_source!(ZERO),
        _ => return None,
    })
}

/// Returns the conversion from f32 to a half that rounds down or up.
pub(super) fn half_from_single(rounding: &str, to: Type) -> Option<LaneOp> {
    Some(match (rounding, to) {
        ("rm", Type::F16) => rare_lanes!(|a: f32| -> f16 { to_f16::<DOWN>(a) }),
        ("rp", Type::F16) => rare_lanes!(|a: f32| -> f16 { to_f16::<UP>(a) }),
        ("rm", Type::Bf16) => rare_lanes!(|a: f32| -> bf16 { to_bf16::<DOWN>(a) }),
        ("rp", Type::Bf16) => rare_lanes!(|a: f32| -> bf16 { to_bf16::<UP>(a) }),
        _ => return None,
    })
}
