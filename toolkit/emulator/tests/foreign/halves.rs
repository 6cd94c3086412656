//! Arithmetic of f16 and bf16, which NVIDIA's compiler made of C++, on all patterns of bits: alone, and with each number of a list.

use std::ops::RangeInclusive;

use emulator::{LaunchOptions, PtxModule};

use crate::exact::{BF16, DIRECTIONS, E4M3, E5M2, Exact, F16, Form, SINGLE, Towards};
use crate::problem::{Argument, Judge, Number, Problem, input, numbers, output};

const PTX: &str = include_str!("halves.ptx");

/// All patterns of 16 bits.
const ALL: usize = 1 << 16;
const NO_NUMBER: u64 = 0x7fff;

/// What a kernel should give.
enum Wanted {
    Bits(u64),
    /// No number, of any bits.
    NoNumber,
    /// A zero of any sign.
    Zero,
    /// What this exact number becomes, or a neighbour: approximations are no better.
    Near(f64),
}

/// A type of 16 bits, and what kernels' names begin with.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    form: Form,
}

const KINDS: [Kind; 2] = [Kind { name: "half", form: F16 }, Kind { name: "bf16", form: BF16 }];

impl Kind {
    fn exact(self, bits: usize) -> Exact {
        Exact::of_bits(self.form, bits as u64)
    }

    fn double(self, bits: usize) -> f64 {
        let single = f32::from_bits(match self.name {
            "half" => return half::f16::from_bits(bits as u16).to_f64(),
            _ => (bits as u32) << 16,
        });
        single.into()
    }

    fn nearest(self, value: Exact) -> Wanted {
        Wanted::Bits(value.round(self.form, Towards::Nearest))
    }

    /// Where a pattern is in the order of all numbers.
    fn place(bits: u64) -> i64 {
        let size = (bits & 0x7fff) as i64;
        if bits >> 15 == 1 { -size } else { size }
    }

    fn is_no_number(self, bits: u64) -> bool {
        self.exact(bits as usize) == Exact::NoNumber
    }

    fn fits(self, wanted: &Wanted, found: u64) -> bool {
        match *wanted {
            Wanted::Bits(bits) => found == bits,
            Wanted::NoNumber => self.is_no_number(found),
            Wanted::Zero => found & 0x7fff == 0,
            Wanted::Near(value) => {
                let nearest = Exact::of_double(value).round(self.form, Towards::Nearest);
                let near = (Self::place(found) - Self::place(nearest)).abs() <= 1;
                if nearest == NO_NUMBER { self.is_no_number(found) } else { near && !self.is_no_number(found) }
            }
        }
    }

    /// Fails if a number of a kernel's output, of so many bytes and in so many parts, is not what is wanted of its part and place.
    fn judge(self, bytes: usize, parts: usize, wanted: impl Fn(usize, usize) -> Wanted + 'static) -> Judge {
        Box::new(move |outputs| {
            let count = outputs[0].len() / bytes / parts;
            for (index, found) in outputs[0].chunks_exact(bytes).enumerate() {
                let found = found.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
                let wanted = wanted(index / count, index % count);
                if !self.fits(&wanted, found) {
                    let wanted = match wanted {
                        Wanted::Bits(bits) => format!("{bits:#x}"),
                        Wanted::NoNumber => "no number".into(),
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

/// Runs a kernel once: its threads have nothing to do with each other. `count` numbers in each of `parts` are its output.
fn run(kind: Kind, family: &str, first: Option<Argument>, [bytes, parts, count]: [usize; 3], judge: Judge) {
    let module = PtxModule::parse(PTX).unwrap();
    let name = format!("{}_{family}", kind.name);
    let arguments = first.into_iter().chain([output::<u8>(bytes * parts * count)]).collect();
    let problem = Problem::line(String::leak(name), (count / 256) as u32, 256, arguments, judge);
    problem.run(PTX, &module, &LaunchOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", problem.kernel));
}

/// Runs a kernel of all patterns, for both types.
fn unary(family: &'static str, parts: usize, wanted: fn(Kind, usize, usize) -> Wanted) {
    for kind in KINDS {
        let judge = kind.judge(2, parts, move |part, bits| wanted(kind, part, bits));
        run(kind, family, None, [2, parts, ALL], judge);
    }
}

/// Numbers with which all others meet: zeros, the least and the greatest, what is at their borders, some as they come.
fn list(kind: Kind) -> Vec<u16> {
    let one = 1f64;
    let some = [one, -one, 1.5, 3.0, -0.1, 1e-3].map(|x| Exact::of_double(x).round(kind.form, Towards::Nearest) as u16);
    let infinite = Exact::of_double(f64::INFINITY).round(kind.form, Towards::Nearest) as u16;
    let subnormal = if kind.name == "half" { 0x3ff } else { 0x7f };
    let borders =
        [0, 0x8000, 1, subnormal, subnormal + 1, infinite - 1, infinite | 0x7fff, infinite, infinite | 0x8000];
    let random = numbers(3, 1 << 16).into_iter().map(|x| x as u16);
    borders.into_iter().chain(some).chain(random).collect()
}

/// Runs a kernel of all patterns with all of a list, for both types. Its elements have so many bytes.
fn binary(family: &'static str, [bytes, parts]: [usize; 2], wanted: fn(Kind, usize, usize, usize) -> Wanted) {
    for kind in KINDS {
        let list = list(kind);
        let (count, first) = (list.len() * ALL, input(&list));
        let judge =
            kind.judge(bytes, parts, move |part, index| wanted(kind, part, index % ALL, list[index / ALL].into()));
        run(kind, family, Some(first), [bytes, parts, count], judge);
    }
}

#[test]
fn signs_and_kinds() {
    unary("signs", 4, |kind, part, bits| match (part, kind.exact(bits)) {
        (0 | 1, Exact::NoNumber) => Wanted::NoNumber,
        (0, _) => Wanted::Bits(bits as u64 ^ 0x8000),
        (1, _) => Wanted::Bits(bits as u64 & 0x7fff),
        (2, value) => Wanted::Bits((value == Exact::NoNumber).into()),
        (_, Exact::Infinite { negative: true }) => Wanted::Bits(0xffff),
        (_, value) => Wanted::Bits(matches!(value, Exact::Infinite { .. }).into()),
    });
}

#[test]
fn whole_numbers() {
    unary("whole", 4, |kind, part, bits| {
        let towards = [Towards::Down, Towards::Up, Towards::Zero, Towards::Nearest][part];
        match kind.exact(bits) {
            value @ Exact::Finite { exponent: ..0, .. } => {
                let whole = Exact::of_integer(value.to_integer(towards).unwrap());
                // What becomes zero keeps its sign.
                Wanted::Bits(whole.round(kind.form, Towards::Nearest) | bits as u64 & 0x8000)
            }
            value => kind.nearest(value),
        }
    });
}

#[test]
fn roots_and_reciprocals() {
    unary("roots", 3, |kind, part, bits| {
        let x = kind.double(bits);
        Wanted::Near([x.sqrt(), if x == 0.0 { 1.0 / x } else { 1.0 / x.sqrt() }, 1.0 / x][part])
    });
}

#[test]
fn powers_and_logarithms() {
    unary("powers", 6, |kind, part, bits| {
        let x = kind.double(bits);
        Wanted::Near(match part {
            0 => x.exp(),
            1 => x.exp2(),
            2 => 10f64.powf(x),
            3 => x.ln(),
            4 => x.log2(),
            _ => x.log10(),
        })
    });
}

#[test]
fn circular_functions() {
    unary("circular", 4, |kind, part, bits| {
        let x = kind.double(bits);
        Wanted::Near(match part {
            0 => x.sin(),
            1 => x.cos(),
            _ => x.tanh(),
        })
    });
}

#[test]
fn sums_products_and_quotients() {
    binary("sums", [2, 4], |kind, part, a, b| {
        let (a, b) = (kind.exact(a), kind.exact(b));
        kind.nearest(match part {
            0 => a.plus(b),
            1 => a.plus(b.negated()),
            2 => a.times(b),
            _ => a.over(b),
        })
    });
}

/// The bits between those of zero and one.
fn saturate(kind: Kind, value: Exact) -> Wanted {
    let one = Exact::of_integer(1);
    let bits = value.round(kind.form, Towards::Nearest);
    match value {
        Exact::NoNumber => Wanted::Bits(0),
        _ if value.is_negative() => Wanted::Bits(0),
        _ => Wanted::Bits(bits.min(one.round(kind.form, Towards::Nearest))),
    }
}

#[test]
fn saturated_sums_and_products() {
    binary("saturated", [2, 3], |kind, part, a, b| {
        let (a, b) = (kind.exact(a), kind.exact(b));
        let value = match part {
            0 => a.plus(b),
            1 => a.plus(b.negated()),
            _ => a.times(b),
        };
        saturate(kind, value)
    });
}

/// The smaller or the greater one; a negative zero is smaller than zero.
fn extreme(kind: Kind, greater: bool, strict: bool, [a, b]: [usize; 2]) -> u64 {
    match [a, b].map(|bits| kind.is_no_number(bits as u64)) {
        [true, true] => NO_NUMBER,
        [true, _] | [_, true] if strict => NO_NUMBER,
        [true, _] => b as u64,
        [_, true] => a as u64,
        _ => {
            let order = |bits: usize| (Kind::place(bits as u64), bits & 0x8000 == 0);
            (if (order(a) < order(b)) == greater { b } else { a }) as u64
        }
    }
}

#[test]
fn minima_and_maxima() {
    binary("extremes", [2, 4], |kind, part, a, b| Wanted::Bits(extreme(kind, part % 2 == 1, part > 1, [a, b])));
}

#[test]
fn comparisons() {
    binary("compared", [2, 1], |kind, _, a, b| {
        let (a, b) = (kind.double(a), kind.double(b));
        let ordered = [a == b, a < b || a > b, a < b, a <= b, a > b, a >= b];
        let unordered = a.is_nan() || b.is_nan();
        let bit = |(at, &holds): (usize, &bool)| {
            u64::from(holds) << at | u64::from(holds || unordered) << (at + ordered.len())
        };
        Wanted::Bits(ordered.iter().enumerate().map(bit).sum())
    });
}

#[test]
fn pairs() {
    binary("pairs", [4, 8], |kind, part, a, b| {
        let one = Exact::of_integer(1).round(kind.form, Towards::Nearest);
        // The lower half is of `a` and `b`, the upper one of `b` and `a`.
        let half = |a: usize, b: usize| {
            let (x, y) = (kind.exact(a), kind.exact(b));
            let (s, t) = (kind.double(a), kind.double(b));
            let round = |value: Exact| value.round(kind.form, Towards::Nearest);
            match part {
                0 => round(x.plus(y)),
                1 => round(x.plus(y.negated())),
                2 => round(x.times(y)),
                3 => extreme(kind, false, false, [a, b]),
                4 => extreme(kind, true, true, [a, b]),
                5 => {
                    if s > t {
                        one
                    } else {
                        0
                    }
                }
                _ => {
                    if s > t {
                        0
                    } else {
                        0xffff
                    }
                }
            }
        };
        let (s, t) = (kind.double(a), kind.double(b));
        let both = u64::from(!s.is_nan() && !t.is_nan()) | u64::from(s < t || s > t) << 1;
        Wanted::Bits(if part == 7 { both } else { half(a, b) | half(b, a) << 16 })
    });
}

#[test]
fn fused_sums_and_products() {
    for kind in KINDS {
        let list = list(kind);
        // Each number with one of the others; and products that meet what takes them away.
        let twos: Vec<u16> = (0..list.len()).flat_map(|i| [list[i], list[(i * 7 + 3) % list.len()]]).collect();
        let (count, first) = (list.len() * ALL, input(&twos));
        let judge = kind.judge(2, 5, move |part, index| {
            let (a, b) = (kind.exact(index % ALL), kind.exact(twos[index / ALL * 2].into()));
            let c = kind.exact(twos[index / ALL * 2 + 1].into());
            let value = a.times(b).plus(c);
            match part {
                1 => saturate(kind, value),
                2 if value.is_negative() => Wanted::Zero,
                _ => kind.nearest(value),
            }
        });
        run(kind, "fused", Some(first), [2, 5, count], judge);
    }
}

/// The bits of an integer in a range; of no number what PTX says.
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
fn of_integers() {
    for (kind, (name, range, bytes)) in KINDS.into_iter().flat_map(|kind| INTEGERS.map(|form| (kind, form))) {
        // Some 13 bits anywhere, and their neighbours; all there are if there are no more.
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
            Wanted::Bits(Exact::of_integer(integers[at]).round(kind.form, DIRECTIONS[part]))
        });
        run(kind, &format!("of_{name}"), Some(input_bytes(contents)), [2, 4, ALL], judge);
    }
}

/// Bytes that a kernel gets by a pointer.
fn input_bytes(contents: Vec<u8>) -> Argument {
    Argument::Memory(crate::problem::Memory::Input(contents), crate::problem::Form::Pointer)
}

#[test]
fn to_and_of_wider_numbers() {
    for kind in KINDS {
        let judge = kind.judge(4, 1, move |_, bits| {
            let value = kind.double(bits) as f32;
            // A number of no bits in particular is compared by its kind alone, below.
            Wanted::Bits(if value.is_nan() { 0 } else { value.to_bits().into() })
        });
        let judge: Judge = Box::new(move |outputs| {
            let numbers = outputs[0].chunks_exact(4).map(|bytes| f32::read(bytes));
            let cleared = numbers.map(|x| if x.is_nan() { 0f32 } else { x }).flat_map(f32::bytes).collect();
            judge(&[cleared])
        });
        run(kind, "to_float", None, [4, 1, ALL], judge);
        let lows = [0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
        let singles: Vec<u32> = (0..ALL as u32).flat_map(|high| lows.map(|low| high << 16 | low)).collect();
        let (count, first) = (singles.len(), input(&singles));
        let judge = kind.judge(2, 5, move |part, at| {
            let value = Exact::of_bits(SINGLE, singles[at].into());
            Wanted::Bits(value.round(kind.form, DIRECTIONS[part % 4]))
        });
        run(kind, "of_float", Some(first), [2, 5, count], judge);
        // Numbers in the middle between two, and the least bit beside.
        let middles = (0..ALL).flat_map(|bits| {
            let middle = (kind.double(bits) + kind.double(bits + 1 & 0xffff)) / 2.0;
            [middle, middle.next_up(), middle.next_down(), kind.double(bits).next_up()]
        });
        let doubles: Vec<f64> = middles.collect();
        let (count, first) = (doubles.len(), input(&doubles));
        let judge = kind.judge(2, 1, move |_, at| kind.nearest(Exact::of_double(doubles[at])));
        run(kind, "of_double", Some(first), [2, 1, count], judge);
    }
}

#[test]
fn numbers_of_eight_bits() {
    const EIGHT: Kind = Kind { name: "half", form: E4M3 };
    for kind in KINDS {
        let judge = EIGHT.judge(2, 4, move |part, bits| {
            let (form, saturate) = ([E4M3, E5M2][part % 2], part < 2);
            let value = kind.exact(bits);
            let greatest = Exact::of_bits(form, u64::MAX).round(form, Towards::Nearest) - [1, 4][part % 2];
            let rounded = value.round(form, Towards::Nearest);
            Wanted::Bits(match value {
                Exact::NoNumber => 0x7f,
                _ if saturate => rounded & 0x80 | (rounded & 0x7f).min(greatest),
                _ => rounded,
            })
        });
        run(kind, "narrowed", None, [2, 4, ALL], judge);
    }
    let judge = KINDS[0].judge(2, 2, |part, bits| {
        Wanted::Bits(Exact::of_bits([E4M3, E5M2][part], bits as u64).round(F16, Towards::Nearest))
    });
    run(KINDS[0], "widened", None, [2, 2, 256], judge);
}

#[test]
fn every_kernel_is_known() {
    let module = PtxModule::parse(PTX).unwrap();
    assert_eq!(module.entries().len(), 2 * (11 + 12 + 5) + 1);
    module.check().unwrap_or_else(|error| panic!("{error}"));
}
