//! Tensor-core products of a warp: `mma` and `wmma`.

use super::decoder::{Decoded, Decoder};
use crate::ops::Type;
use crate::program::{Factor, FactorKind, Fragment, FragmentAccess, FragmentProduct, Mma, Op};
use crate::ptx::ast::{Space, Statement, Width};

/// Returns the kind of factors with two types. `saturates` is for sums of integers.
fn factor_kind(a: &str, b: &str, saturates: bool) -> Option<FactorKind> {
    let integer = |name| match name {
        "s8" => Some(true),
        "u8" => Some(false),
        _ => None,
    };
    let fp8 = |name| match name {
        "e5m2" => Some(true),
        "e4m3" => Some(false),
        _ => None,
    };
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        return Some(FactorKind::Integer { signed: [a, b], saturates });
    }
    if let (Some(a), Some(b)) = (fp8(a), fp8(b)) {
        return Some(FactorKind::Fp8([a, b]));
    }
    Some(match (a, b) {
        ("f16", "f16") => FactorKind::Half(Factor::F16),
        ("bf16", "bf16") => FactorKind::Half(Factor::Bf16),
        ("tf32", "tf32") => FactorKind::Tf32,
        _ => return None,
    })
}

/// Returns whether the new and the old sums are halves. `None` if products of such factors cannot have sums of these
/// types.
fn sums(kind: FactorKind, d: &str, c: &str) -> Option<[bool; 2]> {
    match (kind, d, c) {
        (FactorKind::Integer { .. }, "s32", "s32") => Some([false; 2]),
        (FactorKind::Integer { .. }, ..) => None,
        (_, "f32", "f32") => Some([false; 2]),
        (FactorKind::Half(Factor::F16) | FactorKind::Fp8(_), "f16" | "f32", "f16" | "f32") => {
            Some([d == "f16", c == "f16"])
        }
        _ => None,
    }
}

impl Decoder<'_> {
    pub(super) fn mma(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<Op> {
        let (shape, types) = match parts[1..] {
            ["sync", "aligned", shape, "row", "col", ref types @ ..] => (shape, types),
            _ => return Err("not supported".into()),
        };
        let (types, saturates) = match types {
            ["satfinite", rest @ ..] => (rest, true),
            types => (types, false),
        };
        let &[d_type, a_type, b_type, c_type] = types else { return Err("not supported".into()) };
        let kind = factor_kind(a_type, b_type, saturates).ok_or("not supported")?;
        let halves = sums(kind, d_type, c_type).filter(|[d, c]| d == c).ok_or("not supported")?;
        let depth = match (shape, kind) {
            ("m16n8k16", FactorKind::Half(_)) | ("m16n8k16", FactorKind::Integer { .. }) => 16,
            ("m16n8k8", FactorKind::Half(_)) | ("m16n8k8", FactorKind::Tf32) => 8,
            ("m16n8k4", FactorKind::Tf32) => 4,
            ("m16n8k32", FactorKind::Integer { .. } | FactorKind::Fp8(_)) => 32,
            ("m16n8k16", FactorKind::Fp8(_)) => 16,
            _ => return Err("not supported".into()),
        };
        if saturates && !matches!(kind, FactorKind::Integer { .. }) {
            return Err("not supported".into());
        }
        let [d, a, b, c] = statement.operands.as_slice() else { return Err("four operands are needed".into()) };
        let (half_sum, bits) = (halves[0], kind.bits());
        let count = if half_sum { 2 } else { 4 };
        let d = self.list(d, Type::B32, count, true)?;
        let a = self.list(a, Type::B32, depth * bits / 64, false)?;
        let b = self.list(b, Type::B32, depth * bits / 128, false)?;
        let c = self.list(c, Type::B32, count, false)?;
        Ok(match kind {
            FactorKind::Half(kind) => Op::Mma(Box::new(Mma { kind, depth, half_sum, d, a, b, c })),
            kind => Op::OtherMma(Box::new(Mma { kind, depth, half_sum, d, a, b, c })),
        })
    }

    pub(super) fn wmma(&mut self, statement: &Statement, parts: &[&str]) -> Decoded<Op> {
        match parts[1..] {
            ["load", matrix @ ("a" | "b" | "c"), "sync", "aligned", layout, shape, ref rest @ ..] => {
                self.fragment_access(statement, matrix, layout, shape, rest)
            }
            ["store", "d", "sync", "aligned", layout, shape, ref rest @ ..] => {
                self.fragment_access(statement, "d", layout, shape, rest)
            }
            ["mma", "sync", "aligned", "row" | "col", "row" | "col", shape, ref types @ ..] => {
                self.fragment_product(statement, shape, types)
            }
            _ => Err("not supported".into()),
        }
    }

    fn fragment_access(
        &mut self,
        statement: &Statement,
        matrix: &str,
        layout: &str,
        shape: &str,
        rest: &[&str],
    ) -> Decoded<Op> {
        let [m, n, k] = wmma_shape(shape).ok_or("not supported")?;
        let (space, ty) = match rest {
            ["global", ty] => (Space::Global, *ty),
            ["shared" | "shared::cta", ty] => (Space::Shared, *ty),
            [ty] => (Space::Generic, *ty),
            _ => return Err("not supported".into()),
        };
        let bits = match (matrix, ty) {
            ("a" | "b", "f16" | "bf16") if k == 16 => 16,
            ("a" | "b", "s8" | "u8") if k == 16 => 8,
            ("a" | "b", "tf32") if k == 8 => 32,
            ("c" | "d", "f32" | "s32") => 32,
            ("c" | "d", "f16") if k == 16 => 16,
            _ => return Err("not supported".into()),
        };
        let (sides, depth) = match matrix {
            "a" => (m, k),
            "b" => (n, k),
            _ => (m, n),
        };
        let fragment = Fragment { sides, depth, bits };
        let along_depth = match (matrix, layout) {
            ("b", "row") => false,
            ("b", "col") => true,
            (_, "row") => true,
            (_, "col") => false,
            _ => return Err("not supported".into()),
        };
        let stores = matrix == "d";
        let (registers, address, stride) = match (statement.operands.as_slice(), stores) {
            ([registers, address], false) | ([address, registers], true) => (registers, address, None),
            ([registers, address, stride], false) | ([address, registers, stride], true) => {
                (registers, address, Some(stride))
            }
            _ => return Err("wrong operands".into()),
        };
        // f16 factors always name eight registers, even if fewer hold the fragment.
        let count = if ty == "f16" && matches!(matrix, "a" | "b") { 8 } else { fragment.registers() };
        let stride = match stride {
            Some(stride) => self.input(stride, Type::B32)?,
            None => self.bits(if along_depth { depth } else { sides } as u64, false),
        };
        let (address, fixed) = self.address(address)?;
        let access = FragmentAccess {
            fragment,
            space: if space == Space::Generic { fixed.unwrap_or(space) } else { space },
            address,
            stride,
            along_depth,
            registers: self.list(registers, Type::B32, count, !stores)?,
            scratch: (self.new_slot(Width::B64), self.new_slot(Width::B32)),
        };
        Ok(if stores { Op::FragmentStore(Box::new(access)) } else { Op::FragmentLoad(Box::new(access)) })
    }

    fn fragment_product(&mut self, statement: &Statement, shape: &str, types: &[&str]) -> Decoded<Op> {
        let [m, n, k] = wmma_shape(shape).ok_or("not supported")?;
        let (types, saturates) = match types {
            [rest @ .., "satfinite"] => (rest, true),
            types => (types, false),
        };
        let [d_type, a_type, b_type, c_type] = match *types {
            [d, c] => [d, "f16", "f16", c],
            [d, a, b, c] if a != "f16" => [d, a, b, c],
            _ => return Err("not supported".into()),
        };
        let kind = factor_kind(a_type, b_type, saturates).filter(|kind| !matches!(kind, FactorKind::Fp8(_)));
        let kind = kind.filter(|kind| matches!(kind, FactorKind::Integer { .. }) || !saturates);
        let kind = kind.filter(|kind| (*kind == FactorKind::Tf32) == (k == 8)).ok_or("not supported")?;
        let half_sums = sums(kind, d_type, c_type).ok_or("not supported")?;
        let [d, a, b, c] = statement.operands.as_slice() else { return Err("four operands are needed".into()) };
        let count = |sides: usize| match kind {
            FactorKind::Half(Factor::F16) => 8,
            kind => Fragment { sides, depth: k, bits: kind.bits() }.registers(),
        };
        let sum_registers = |half: bool| if half { 4 } else { 8 };
        Ok(Op::FragmentProduct(Box::new(FragmentProduct {
            kind,
            shape: [m, n, k],
            half_sums,
            d: self.list(d, Type::B32, sum_registers(half_sums[0]), true)?,
            a: self.list(a, Type::B32, count(m), false)?,
            b: self.list(b, Type::B32, count(n), false)?,
            c: self.list(c, Type::B32, sum_registers(half_sums[1]), false)?,
        })))
    }
}

/// Returns the rows, columns and depth of a shape.
fn wmma_shape(shape: &str) -> Option<[usize; 3]> {
    Some(match shape {
        "m16n16k16" => [16, 16, 16],
        "m32n8k16" => [32, 8, 16],
        "m8n32k16" => [8, 32, 16],
        "m16n16k8" => [16, 16, 8],
        _ => return None,
    })
}
