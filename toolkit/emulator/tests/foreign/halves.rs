//! f16 and bf16 kernels on all 65,536 bit patterns, alone and combined with each number of a list.

use emulator::{LaunchOptions, PtxModule};

use crate::exact::{BF16, Exact, F16, Form, Towards};
use crate::problem::{Argument, Judge, Problem, input, numbers, output};

const PTX: &str = include_str!("halves.ptx");

/// The number of 16-bit patterns.
pub const ALL: usize = 1 << 16;
pub const NAN: u64 = 0x7fff;

/// An expected result.
pub enum Wanted {
    Bits(u64),
    /// NaN, with any bits.
    Nan,
    /// Zero, with either sign.
    Zero,
    /// This number rounded, or a neighbour of that, because the operation is an approximation.
    Near(f64),
}

/// A 16-bit type, with the prefix of its kernels' names.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub form: Form,
}

pub const KINDS: [Kind; 2] = [Kind { name: "half", form: F16 }, Kind { name: "bf16", form: BF16 }];

impl Kind {
    pub fn exact(self, bits: usize) -> Exact {
        Exact::from_bits(self.form, bits as u64)
    }

    pub fn double(self, bits: usize) -> f64 {
        let single = f32::from_bits(match self.name {
            "half" => return half::f16::from_bits(bits as u16).to_f64(),
            _ => (bits as u32) << 16,
        });
        single.into()
    }

    pub fn nearest(self, value: Exact) -> Wanted {
        Wanted::Bits(value.round(self.form, Towards::Nearest))
    }

    /// The position of a bit pattern in the order of all numbers.
    pub fn place(bits: u64) -> i64 {
        let size = (bits & 0x7fff) as i64;
        if bits >> 15 == 1 { -size } else { size }
    }

    pub fn is_nan(self, bits: u64) -> bool {
        self.exact(bits as usize) == Exact::Nan
    }

    fn fits(self, wanted: &Wanted, found: u64) -> bool {
        match *wanted {
            Wanted::Bits(bits) => found == bits,
            Wanted::Nan => self.is_nan(found),
            Wanted::Zero => found & 0x7fff == 0,
            Wanted::Near(value) => {
                let nearest = Exact::from_double(value).round(self.form, Towards::Nearest);
                let near = (Self::place(found) - Self::place(nearest)).abs() <= 1;
                if nearest == NAN { self.is_nan(found) } else { near && !self.is_nan(found) }
            }
        }
    }

    /// Checks a kernel's output, which has `parts` parts with elements of `bytes` bytes. `wanted` gives the expected
    /// result for a part and an index.
    pub fn judge(self, bytes: usize, parts: usize, wanted: impl Fn(usize, usize) -> Wanted + 'static) -> Judge {
        Box::new(move |outputs| {
            let count = outputs[0].len() / bytes / parts;
            for (index, found) in outputs[0].chunks_exact(bytes).enumerate() {
                let found = found.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
                let wanted = wanted(index / count, index % count);
                if !self.fits(&wanted, found) {
                    let wanted = match wanted {
                        Wanted::Bits(bits) => format!("{bits:#x}"),
                        Wanted::Nan => "NaN".into(),
                        Wanted::Zero => "a zero".into(),
                        Wanted::Near(value) => format!("near {value:e}"),
                    };
                    let (part, at) = (index / count, index % count);
                    return Err(format!("part {part} of {at:#x} is {found:#x} and should be {wanted}"));
                }
            }
            Ok(())
        })
    }
}

/// Runs a kernel once, since its threads are independent. The output has `parts` parts of `count` elements.
pub fn run(kind: Kind, family: &str, first: Option<Argument>, [bytes, parts, count]: [usize; 3], judge: Judge) {
    let module = PtxModule::parse(PTX).unwrap();
    let name = format!("{}_{family}", kind.name);
    let arguments = first.into_iter().chain([output::<u8>(bytes * parts * count)]).collect();
    let problem = Problem::line(String::leak(name), (count / 256) as u32, 256, arguments, judge);
    problem.run(PTX, &module, &LaunchOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", problem.kernel));
}

/// Runs a kernel on all bit patterns, for both types.
pub fn unary(family: &'static str, parts: usize, wanted: fn(Kind, usize, usize) -> Wanted) {
    for kind in KINDS {
        let judge = kind.judge(2, parts, move |part, bits| wanted(kind, part, bits));
        run(kind, family, None, [2, parts, ALL], judge);
    }
}

/// The numbers to combine with all others: zeros, the least and greatest numbers and their neighbours, and some
/// arbitrary ones.
pub fn list(kind: Kind) -> Vec<u16> {
    let one = 1f64;
    let some =
        [one, -one, 1.5, 3.0, -0.1, 1e-3].map(|x| Exact::from_double(x).round(kind.form, Towards::Nearest) as u16);
    let infinite = Exact::from_double(f64::INFINITY).round(kind.form, Towards::Nearest) as u16;
    let subnormal = if kind.name == "half" { 0x3ff } else { 0x7f };
    let borders =
        [0, 0x8000, 1, subnormal, subnormal + 1, infinite - 1, infinite | 0x7fff, infinite, infinite | 0x8000];
    let random = numbers(3, 1 << 16).into_iter().map(|x| x as u16);
    borders.into_iter().chain(some).chain(random).collect()
}

/// Runs a kernel on all bit patterns with each number of a list, for both types. Output elements have `bytes` bytes.
pub fn binary(family: &'static str, [bytes, parts]: [usize; 2], wanted: fn(Kind, usize, usize, usize) -> Wanted) {
    for kind in KINDS {
        let list = list(kind);
        let (count, first) = (list.len() * ALL, input(&list));
        let judge =
            kind.judge(bytes, parts, move |part, index| wanted(kind, part, index % ALL, list[index / ALL].into()));
        run(kind, family, Some(first), [bytes, parts, count], judge);
    }
}

#[test]
fn every_kernel_is_supported() {
    let module = PtxModule::parse(PTX).unwrap();
    assert_eq!(module.entries().len(), 2 * (11 + 12 + 5) + 1);
    module.check().unwrap_or_else(|error| panic!("{error}"));
}
