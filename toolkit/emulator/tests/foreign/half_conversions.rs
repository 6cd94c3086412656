//! Conversions to and from f16 and bf16, compiled from C++ by NVIDIA's compiler.

use std::ops::RangeInclusive;

use crate::exact::{DIRECTIONS, E4M3, E5M2, Exact, F16, SINGLE, Towards};
use crate::halves::{ALL, KINDS, Kind, Wanted, run};
use crate::problem::{Argument, Form, Judge, Memory, Number, input, numbers};

/// The bits of an integer clamped to a range. NaN gives the value that PTX specifies.
fn integer(value: Option<i128>, range: &RangeInclusive<i128>, bytes: usize) -> Wanted {
    let mask = u64::MAX >> (64 - 8 * bytes);
    let none = if bytes == 8 { 1 << 63 } else { 0 };
    Wanted::Bits(value.map_or(none, |value| value.clamp(*range.start(), *range.end()) as u64 & mask))
}

const INTEGERS: [(&str, RangeInclusive<i128>, usize); 6] = [
    ("short", -0x8000..=0x7fff, 2),
    ("ushort", 0..=0xffff, 2),
    ("int", -0x8000_0000..=0x7fff_ffff, 4),
    ("uint", 0..=0xffff_ffff, 4),
    ("ll", i64::MIN as i128..=i64::MAX as i128, 8),
    ("ull", 0..=u64::MAX as i128, 8),
];

#[test]
fn to_integers() {
    for (kind, (name, range, bytes)) in KINDS.into_iter().flat_map(|kind| INTEGERS.map(|form| (kind, form))) {
        let judge = kind
            .judge(bytes, 4, move |part, bits| integer(kind.exact(bits).to_integer(DIRECTIONS[part]), &range, bytes));
        run(kind, &format!("to_{name}"), None, [bytes, 4, ALL], judge);
    }
    for kind in KINDS {
        let judge = kind.judge(2, 2, move |part, bits| {
            let range = [-128..=127, 0..=255][part].clone();
            let Wanted::Bits(bits) = integer(kind.exact(bits).to_integer(Towards::Zero), &range, 1) else { panic!() };
            Wanted::Bits(bits)
        });
        run(kind, "to_bytes", None, [2, 2, ALL], judge);
    }
}

#[test]
fn from_integers() {
    for (kind, (name, range, bytes)) in KINDS.into_iter().flat_map(|kind| INTEGERS.map(|form| (kind, form))) {
        // For 16 bits, all integers. For wider types, 14-bit numbers at any bit position and their neighbours.
        let tops = numbers(ALL, 1 << 14);
        let integers: Vec<i128> = (0..ALL)
            .map(|i| match bytes {
                2 => i as i128 + range.start(),
                _ => {
                    let value = (i128::from(tops[i]) << (i % (8 * bytes))) + (i / 64 % 3) as i128 - 1;
                    (if i & 1 << 12 == 0 { value } else { -value }).clamp(*range.start(), *range.end())
                }
            })
            .collect();
        let contents: Vec<u8> = integers.iter().flat_map(|value| value.to_le_bytes()[..bytes].to_vec()).collect();
        let judge = kind.judge(2, 4, move |part, at| {
            Wanted::Bits(Exact::from_integer(integers[at]).round(kind.form, DIRECTIONS[part]))
        });
        run(kind, &format!("of_{name}"), Some(input_bytes(contents)), [2, 4, ALL], judge);
    }
}

/// A pointer argument to input bytes.
fn input_bytes(contents: Vec<u8>) -> Argument {
    Argument::Memory(Memory::Input(contents), Form::Pointer)
}

#[test]
fn conversions_with_wider_types() {
    for kind in KINDS {
        let judge = kind.judge(4, 1, move |_, bits| {
            let value = kind.double(bits) as f32;
            // NaNs may have any bits, so both sides count NaN as zero.
            Wanted::Bits(if value.is_nan() { 0 } else { value.to_bits().into() })
        });
        let judge: Judge = Box::new(move |outputs| {
            let numbers = outputs[0].chunks_exact(4).map(f32::read);
            let cleared = numbers.map(|x| if x.is_nan() { 0f32 } else { x }).flat_map(f32::bytes).collect();
            judge(&[cleared])
        });
        run(kind, "to_float", None, [4, 1, ALL], judge);
        let lows = [0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
        let singles: Vec<u32> = (0..ALL as u32).flat_map(|high| lows.map(|low| high << 16 | low)).collect();
        let (count, first) = (singles.len(), input(&singles));
        let judge = kind.judge(2, 5, move |part, at| {
            let value = Exact::from_bits(SINGLE, singles[at].into());
            Wanted::Bits(value.round(kind.form, DIRECTIONS[part % 4]))
        });
        run(kind, "of_float", Some(first), [2, 5, count], judge);
        // The midpoints between neighbouring numbers, and the doubles right next to them.
        let middles = (0..ALL).flat_map(|bits| {
            let middle = (kind.double(bits) + kind.double((bits + 1) & 0xffff)) / 2.0;
            [middle, middle.next_up(), middle.next_down(), kind.double(bits).next_up()]
        });
        let doubles: Vec<f64> = middles.collect();
        let (count, first) = (doubles.len(), input(&doubles));
        let judge = kind.judge(2, 1, move |_, at| kind.nearest(Exact::from_double(doubles[at])));
        run(kind, "of_double", Some(first), [2, 1, count], judge);
    }
}

#[test]
fn conversions_with_fp8() {
    const EIGHT: Kind = Kind { name: "half", form: E4M3 };
    for kind in KINDS {
        let judge = EIGHT.judge(2, 4, move |part, bits| {
            let (form, saturate) = ([E4M3, E5M2][part % 2], part < 2);
            let value = kind.exact(bits);
            let greatest = Exact::from_bits(form, u64::MAX).round(form, Towards::Nearest) - [1, 4][part % 2];
            let rounded = value.round(form, Towards::Nearest);
            Wanted::Bits(match value {
                Exact::Nan => 0x7f,
                _ if saturate => rounded & 0x80 | (rounded & 0x7f).min(greatest),
                _ => rounded,
            })
        });
        run(kind, "narrowed", None, [2, 4, ALL], judge);
    }
    let judge = KINDS[0].judge(2, 2, |part, bits| {
        Wanted::Bits(Exact::from_bits([E4M3, E5M2][part], bits as u64).round(F16, Towards::Nearest))
    });
    run(KINDS[0], "widened", None, [2, 2, 256], judge);
}
