//! Arithmetic of f16 and bf16, compiled from C++ by NVIDIA's compiler.

use std::cmp::Ordering;

use crate::exact::{Exact, Towards};
use crate::halves::{ALL, KINDS, Kind, NAN, Wanted, binary, list, run, unary};
use crate::problem::input;

#[test]
fn signs_and_kinds() {
    unary("signs", 4, |kind, part, bits| match (part, kind.exact(bits)) {
        (0 | 1, Exact::Nan) => Wanted::Nan,
        (0, _) => Wanted::Bits(bits as u64 ^ 0x8000),
        (1, _) => Wanted::Bits(bits as u64 & 0x7fff),
        (2, value) => Wanted::Bits((value == Exact::Nan).into()),
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
                let whole = Exact::from_integer(value.to_integer(towards).unwrap());
                // A result of zero keeps its sign.
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

/// The rounded value clamped to the range from zero to one.
fn saturate(kind: Kind, value: Exact) -> Wanted {
    let one = Exact::from_integer(1);
    let bits = value.round(kind.form, Towards::Nearest);
    match value {
        Exact::Nan => Wanted::Bits(0),
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

/// Returns the greater of two numbers if `greater`, otherwise the smaller, with -0 below +0. If one is NaN, returns NaN if
/// `strict`, otherwise the other number.
fn extreme(kind: Kind, greater: bool, strict: bool, [a, b]: [usize; 2]) -> u64 {
    match [a, b].map(|bits| kind.is_nan(bits as u64)) {
        [true, true] => NAN,
        [true, _] | [_, true] if strict => NAN,
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
        let differ = a.partial_cmp(&b).is_some_and(Ordering::is_ne);
        let ordered = [a == b, differ, a < b, a <= b, a > b, a >= b];
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
        let one = Exact::from_integer(1).round(kind.form, Towards::Nearest);
        // The lower half is for `a` and `b`, the upper half for `b` and `a`.
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
        let both = {
            let order = s.partial_cmp(&t);
            u64::from(order.is_some()) | u64::from(order.is_some_and(Ordering::is_ne)) << 1
        };
        Wanted::Bits(if part == 7 { both } else { half(a, b) | half(b, a) << 16 })
    });
}

#[test]
fn fused_sums_and_products() {
    for kind in KINDS {
        let list = list(kind);
        // Each list number paired with another list number, including products that cancel with the addend.
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
