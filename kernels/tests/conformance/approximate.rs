//! The functions that the hardware approximates, within the errors that the PTX ISA allows them.

use crate::case::{Case, Expect, widen};
use crate::float::flush;
use crate::types::Type;

/// An error that the ISA allows a result to have.
#[derive(Clone, Copy)]
enum Error {
    /// Relative to the result. Has the exponent of two.
    Relative(f64),
    /// Absolute. Has the exponent of two.
    Absolute(f64),
}

/// A function of one number: its name, its exact value, its error, and whether the ISA bounds the error at an argument.
struct Function {
    name: &'static str,
    exact: fn(f64) -> f64,
    error: fn(f64) -> Error,
    bounded: fn(f64) -> bool,
    /// Whether the function has forms with and without `.ftz`.
    flushes: bool,
}

const FUNCTIONS: [Function; 8] = [
    Function {
        name: "ex2.approx",
        exact: f64::exp2,
        error: |_| Error::Relative(-22.0),
        bounded: |_| true,
        flushes: true,
    },
    Function {
        name: "lg2.approx",
        exact: f64::log2,
        error: |x| if (0.5..=2.0).contains(&x) { Error::Absolute(-22.0) } else { Error::Relative(-22.0) },
        bounded: |_| true,
        flushes: true,
    },
    Function {
        name: "rcp.approx",
        exact: |x| 1.0 / x,
        error: |_| Error::Relative(-23.0),
        bounded: |_| true,
        flushes: true,
    },
    Function {
        name: "rsqrt.approx",
        exact: |x| if x == 0.0 { 1.0 / x } else { 1.0 / x.sqrt() },
        error: |_| Error::Relative(-22.9),
        bounded: |_| true,
        flushes: true,
    },
    Function {
        name: "sqrt.approx",
        exact: f64::sqrt,
        error: |_| Error::Relative(-23.0),
        bounded: |_| true,
        flushes: true,
    },
    Function {
        name: "sin.approx",
        exact: f64::sin,
        error: |_| Error::Absolute(-20.5),
        bounded: |x| x.abs() <= std::f64::consts::TAU || !x.is_finite(),
        flushes: true,
    },
    Function {
        name: "cos.approx",
        exact: f64::cos,
        error: |_| Error::Absolute(-20.5),
        bounded: |x| x.abs() <= std::f64::consts::TAU || !x.is_finite(),
        flushes: true,
    },
    Function {
        name: "tanh.approx",
        exact: f64::tanh,
        error: |_| Error::Relative(-11.0),
        bounded: |_| true,
        flushes: false,
    },
];

/// Returns the values that a result may have. Below `least` only the size of the error is bounded, by `least` itself.
fn expect(ty: Type, value: f64, error: Error, least: f64, largest: f64) -> Expect {
    let error = match error {
        Error::Relative(power) => value.abs() * power.exp2(),
        Error::Absolute(power) => power.exp2(),
    };
    let small = if value.abs() < least { least } else { 0.0 };
    match value {
        value if value.abs() > largest => Expect::Near { ty, value: f64::INFINITY.copysign(value), error: 0.0 },
        value => Expect::Near { ty, value, error: error + small },
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for Function { name, exact, error, bounded, flushes } in FUNCTIONS {
        for ftz in [false, true] {
            if ftz && !flushes {
                continue;
            }
            let line = format!("{name}{}.f32 %x, %a;", if ftz { ".ftz" } else { "" });
            cases.push(Case::lanes(line, &[Type::F32], Type::F32, move |v| {
                let x = widen(Type::F32, if ftz { flush(v[0]) } else { v[0] });
                if !bounded(x) {
                    return Expect::Any;
                }
                expect(Type::F32, exact(x), error(x), f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX))
            }));
        }
    }
    cases.extend(quotients());
    cases.extend(halves());
    cases
}

/// Quotients. The ISA bounds their error if neither operand is extreme.
fn quotients() -> Vec<Case> {
    let mut cases = Vec::new();
    let moderate = 2f64.powi(-126)..=2f64.powi(126);
    for name in ["div.approx", "div.full"] {
        for ftz in [false, true] {
            let line = format!("{name}{}.f32 %x, %a, %b;", if ftz { ".ftz" } else { "" });
            let moderate = moderate.clone();
            cases.push(Case::lanes(line, &[Type::F32; 2], Type::F32, move |v| {
                let [a, b] = [v[0], v[1]].map(|bits| widen(Type::F32, if ftz { flush(bits) } else { bits }));
                if !moderate.contains(&b.abs()) || a != 0.0 && !moderate.contains(&a.abs()) {
                    return Expect::Any;
                }
                let error = Error::Relative(-22.0); // two units in the last place
                expect(Type::F32, a / b, error, f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX))
            }));
        }
    }
    cases
}

/// `ex2` and `tanh` of halves, alone and in pairs.
fn halves() -> Vec<Case> {
    type Exact = fn(f64) -> f64;
    let functions: [(&str, Type, Exact, Error); 3] = [
        ("ex2.approx", Type::F16, f64::exp2, Error::Relative(-9.9)),
        ("tanh.approx", Type::F16, f64::tanh, Error::Absolute(-10.987)),
        ("tanh.approx", Type::Bf16, f64::tanh, Error::Absolute(-8.0)),
    ];
    let mut cases = Vec::new();
    for (name, ty, exact, error) in functions {
        let (least, largest) = if ty == Type::F16 { (2f64.powi(-14), 65504.0) } else { (2f64.powi(-126), 3.39e38) };
        let of = move |bits: u64| expect(ty, exact(widen(ty, bits)), error, least, largest);
        cases.push(Case::lanes(format!("{name}.{ty} %x, %a;"), &[ty], ty, move |v| of(v[0])));
        let pair = if ty == Type::F16 { Type::F16x2 } else { Type::Bf16x2 };
        // The halves of the result are two outputs, each with its own tolerance.
        let case = Case::new(format!("{name}.{pair} %r0, %a;"), &[pair], &[ty; 2], move |operands, thread| {
            let bits = operands[thread][0];
            vec![of(bits & 0xffff), of(bits >> 16)]
        });
        cases.push(case.after("mov.b32 {%x, %y}, %r0;"));
    }
    cases
}
