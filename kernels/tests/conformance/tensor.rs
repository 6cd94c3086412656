//! `ldmatrix` and `mma`: fragments of matrices over the lanes of a warp.

use crate::case::{Case, Expect, INPUTS, widen};
use crate::exact::{Exact, Rounding};
use crate::types::Type;

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (count, matrices) in [("x1", 1), ("x2", 2), ("x4", 4)] {
        for trans in ["", ".trans"] {
            for (space, address) in [("", "%generic"), (".shared", "%tile")] {
                cases.push(load(&format!("{count}{trans}{space}"), matrices, trans == ".trans", address));
            }
        }
    }
    for depth in [8, 16] {
        for bf16 in [false, true] {
            let (factors, integers) =
                if bf16 { (Type::BfFactors, Type::BfIntegers) } else { (Type::Factors, Type::Integers) };
            cases.push(multiply(depth, factors, Type::Sum));
            cases.push(multiply(depth, integers, Type::IntegerSum));
        }
        cases.push(multiply(depth, Type::Factors, Type::Factors));
        cases.push(multiply(depth, Type::Integers, Type::Integers));
    }
    cases
}

/// Lane `8 * m + r` addresses row `r` of matrix `m`. Lane `l` receives two elements of row `l / 4`, or of column `l /
/// 4` if transposed.
fn load(modifiers: &str, matrices: usize, transposed: bool, address: &str) -> Case {
    let names = ["%x", "%y", "%z", "%w"][..matrices].join(", ");
    let line = format!("ldmatrix.sync.aligned.m8n8.{modifiers}.b16 {{{names}}}, [{address}];");
    let case = Case::new(line, &[Type::B64; 2], &vec![Type::B32; matrices], move |operands, thread| {
        let (first, lane) = (thread / 32 * 32, thread % 32);
        let element = |matrix: usize, row: usize, column: usize| {
            operands[first + 8 * matrix + row][column / 4] >> (16 * (column % 4)) & 0xffff
        };
        let fragment = |matrix| {
            let (major, minor) = (lane / 4, lane % 4 * 2);
            let pair = [0, 1].map(|i| {
                if transposed { element(matrix, minor + i, major) } else { element(matrix, major, minor + i) }
            });
            Expect::Bits(pair[0] | pair[1] << 16)
        };
        (0..matrices).map(fragment).collect()
    });
    case.before("st.shared.v2.b64 [%tile], {%a, %b};\nbar.warp.sync -1;")
}

/// `mma.m16n8k8` or `k16`, with factors and sums of these types.
///
/// Let `g = lane / 4` and `t = lane % 4`. Register `i` of `a` has columns `2t + 8 * (i / 2)` and the next, in row `g +
/// 8 * (i % 2)`. Register `i` of `b` has rows `2t + 8i` and the next, in column `g`. In `c` and `d` a lane has columns
/// `2t` and the next, in rows `g` and `g + 8`.
fn multiply(depth: usize, factors: Type, sums: Type) -> Case {
    let (half, of_a, of_b) = (factors.halves(), depth / 4, depth / 8);
    let exact = matches!(factors, Type::Integers | Type::BfIntegers);
    let single = matches!(sums, Type::Sum | Type::IntegerSum);
    let (ty, of_c) = if single { (Type::F32, 4) } else { (Type::F16, 2) };
    let list = |names: &[&str]| format!("{{{}}}", names.join(", "));
    let (a, rest) = INPUTS.split_at(of_a);
    let (b, c) = rest.split_at(of_b);
    let line = format!(
        "mma.sync.aligned.m16n8k{depth}.row.col.{ty}.{half}.{half}.{ty} {}, {}, {}, {};",
        list(if single { &["%x", "%y", "%z", "%w"] } else { &["%r0", "%r1"] }),
        list(a),
        list(b),
        list(&c[..of_c]),
    );
    let inputs = [vec![factors; of_a + of_b], vec![sums; of_c]].concat();
    let case = Case::new(line, &inputs, &[ty; 4], move |operands, thread| {
        let (warp, lane) = (&operands[thread / 32 * 32..], thread % 32);
        let factor =
            |lane: usize, register: usize, k: usize| widen(half, warp[lane][register] >> (16 * (k % 2)) & 0xffff);
        let element = |i: usize| {
            let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
            let sums = &operands[thread][of_a + of_b..];
            let start = if single { sums[i] } else { sums[i / 2] >> (16 * (i % 2)) & 0xffff };
            let products = (0..depth).map(|k| {
                let a = factor(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k);
                a * factor(column * 4 + k % 8 / 2, of_a + k / 8, k)
            });
            let terms: Vec<f64> = products.chain([widen(ty, start)]).collect();
            let sum: f64 = terms.iter().sum();
            if exact {
                return Expect::Bits(Exact::of(Type::F64, sum.to_bits()).round(ty, Rounding::Nearest));
            }
            // The terms are cut off at the last bits of the largest term, and so is the sum.
            let largest = terms.iter().fold(sum.abs(), |largest, term| largest.max(term.abs()));
            let cut = largest * (depth + 2) as f64 * 2f64.powi(-23);
            let rounding = if single { 0.0 } else { sum.abs() * 2f64.powi(-11) + 2f64.powi(-25) };
            Expect::Near { ty, value: sum, error: if sum.is_finite() { cut + rounding } else { 0.0 } }
        };
        (0..4).map(element).collect()
    });
    if single { case } else { case.after("mov.b32 {%x, %y}, %r0;\nmov.b32 {%z, %w}, %r1;") }
}
