//! Instruction forms against plain Rust, on random inputs and on the extremes of each type.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use emulator::{Arg, Device, Module};
use half::{bf16, f16};

/// Values of 32 bits: extremes of integers and floats, then random ones.
fn words() -> Vec<u32> {
    let mut values =
        vec![0, 1, 2, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0xffff, 0x8000, 0x7c00, 0x7e00, 0x3c01];
    let floats = [
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -0.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-40,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    values.extend(floats.map(f32::to_bits));
    values.extend([65504.0f32, 65520.0, 6e-8, 1e10, -3e9, 4e9].map(f32::to_bits));
    let mut state = 0x9e37_79b9u32;
    while values.len() < 256 {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        values.push(state);
    }
    values
}

/// Runs `line` on `%a`, `%b` and `%c`, giving `%d`, for 256 triples of 32-bit values; all are registers of `.b32`.
fn run(line: &str) -> Vec<([u32; 3], u32)> {
    let module = Module::parse(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 input, .param .u64 output)\n{{\n\
         .reg .b16 %h<4>;\n.reg .b32 %a, %b, %c, %d, %t;\n.reg .b64 %i, %o, %n, %w<4>;\n.reg .pred %p, %q;\n\
         ld.param.u64 %i, [input];\nld.param.u64 %o, [output];\nmov.u32 %t, %tid.x;\n\
         mul.wide.u32 %n, %t, 16;\nadd.u64 %i, %i, %n;\nmul.wide.u32 %n, %t, 4;\nadd.u64 %o, %o, %n;\n\
         ld.global.v4.b32 {{%a, %b, %c, _}}, [%i];\n{line}\nst.global.b32 [%o], %d;\nret;\n}}\n"
    ))
    .unwrap_or_else(|error| panic!("{line}: {error}"));
    let values = words();
    let triples: Vec<[u32; 3]> = (0..256).map(|i| [values[i], values[i * 7 % 256], values[i * 31 % 256]]).collect();
    let input: Vec<u8> = triples.iter().flat_map(|&[a, b, c]| [a, b, c, 0]).flat_map(u32::to_le_bytes).collect();
    let mut device = Device::new();
    let (i, o) = (device.alloc_from("input", &input), device.alloc_named("output", 1024));
    device.launch(&module, "k", [1; 3], [256, 1, 1], 0, &[Arg::Ptr(i), Arg::Ptr(o)]).unwrap();
    let output = device.read(o, 1024).unwrap();
    let output = output.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    triples.into_iter().zip(output).collect()
}

#[track_caller]
fn integers(line: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    for ([a, b, c], d) in run(line) {
        assert_eq!(d, expected(a, b, c), "{line} of {a:#x}, {b:#x}, {c:#x}");
    }
}

#[track_caller]
fn floats(line: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    for ([a, b, c], d) in run(line) {
        let [a, b, c, d] = [a, b, c, d].map(f32::from_bits);
        let wanted = expected(a, b, c);
        let same = d.to_bits() == wanted.to_bits() || d.is_nan() && wanted.is_nan();
        assert!(same, "{line} of {a:e}, {b:e}, {c:e}: {d:e}, not {wanted:e}");
    }
}

#[test]
fn integer_arithmetic() {
    integers("add.s32 %d, %a, %b;", |a, b, _| a.wrapping_add(b));
    integers("sub.u32 %d, %a, %b;", |a, b, _| a.wrapping_sub(b));
    integers("mul.lo.s32 %d, %a, %b;", |a, b, _| a.wrapping_mul(b));
    integers("mad.lo.s32 %d, %a, %b, %c;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    integers("mul.hi.u32 %d, %a, %b;", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    integers("mul.hi.s32 %d, %a, %b;", |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
    integers("mul.wide.s32 %w1, %a, %b;\nshr.u64 %w1, %w1, 20;\ncvt.u32.u64 %d, %w1;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) as u64 >> 20) as u32
    });
    integers("div.u32 %d, %a, %b;", |a, b, _| a.checked_div(b).unwrap_or(u32::MAX));
    integers("rem.s32 %d, %a, %b;", |a, b, _| if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 });
    integers("min.s32 %d, %a, %b;", |a, b, _| (a as i32).min(b as i32) as u32);
    integers("max.u32 %d, %a, %b;", |a, b, _| a.max(b));
    integers("abs.s32 %d, %a;", |a, _, _| (a as i32).wrapping_abs() as u32);
    integers("neg.s32 %d, %a;", |a, _, _| a.wrapping_neg());
}

#[test]
fn bits_and_fields() {
    integers("and.b32 %d, %a, %b;", |a, b, _| a & b);
    integers("xor.b32 %d, %a, %b;", |a, b, _| a ^ b);
    integers("not.b32 %d, %a;", |a, _, _| !a);
    integers("shl.b32 %d, %a, %b;", |a, b, _| a.checked_shl(b).unwrap_or(0));
    integers("shr.u32 %d, %a, %b;", |a, b, _| a.checked_shr(b).unwrap_or(0));
    integers("shr.s32 %d, %a, %b;", |a, b, _| (a as i32 >> b.min(31)) as u32);
    integers("popc.b32 %d, %a;", |a, _, _| a.count_ones());
    integers("clz.b32 %d, %a;", |a, _, _| a.leading_zeros());
    integers("brev.b32 %d, %a;", |a, _, _| a.reverse_bits());
    integers("bfe.u32 %d, %a, 4, 9;", |a, _, _| a >> 4 & 511);
    integers("bfe.s32 %d, %a, 28, 9;", |a, _, _| (a as i32 >> 28) as u32);
    integers("bfe.s32 %d, %a, 4, 8;", |a, _, _| ((a >> 4) as i8) as u32);
    integers("bfi.b32 %d, %a, %b, 8, 8;", |a, b, _| b & !0xff00 | (a & 255) << 8);
    integers("prmt.b32 %d, %a, %b, 0x0123;", |a, _, _| a.swap_bytes());
    integers("prmt.b32 %d, %a, %b, 0x7654;", |_, b, _| b);
    integers("prmt.b32 %d, %a, %b, 0xbbbb;", |a, _, _| if a >> 31 == 1 { u32::MAX } else { 0 });
    integers("shf.l.wrap.b32 %d, %a, %b, %c;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
    });
    integers("shf.r.clamp.b32 %d, %a, %b, %c;", |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32);
    integers("lop3.b32 %d, %a, %b, %c, 0xe8;", |a, b, c| a & b | a & c | b & c);
}

#[test]
fn comparisons_and_selection() {
    let test = |name: &str| format!("setp.{name} %p, %a, %b;\nselp.b32 %d, 1, 0, %p;");
    integers(&test("lt.s32"), |a, b, _| ((a as i32) < b as i32).into());
    integers(&test("hs.u32"), |a, b, _| (a >= b).into());
    let f = |test: fn(f32, f32) -> bool| move |a, b, _| test(f32::from_bits(a), f32::from_bits(b)).into();
    integers(&test("eq.f32"), f(|a, b| a == b));
    integers(&test("ne.f32"), f(|a, b| a != b && !a.is_nan() && !b.is_nan()));
    integers(&test("neu.f32"), f(|a, b| a != b));
    integers(&test("ltu.f32"), f(|a, b| a < b || a.is_nan() || b.is_nan()));
    integers(&test("num.f32"), f(|a, b| !a.is_nan() && !b.is_nan()));
    integers(
        "setp.gt.u32 %q, %c, 9;\nsetp.lt.and.u32 %p|%q, %a, %b, %q;\nselp.b32 %d, 1, 0, %p;\n@%q add.u32 %d, %d, 2;",
        |a, b, c| u32::from(a < b && c > 9) + 2 * u32::from(a >= b && c > 9),
    );
}

#[test]
fn single_precision() {
    floats("add.rn.f32 %d, %a, %b;", |a, b, _| a + b);
    floats("mul.rn.f32 %d, %a, %b;", |a, b, _| a * b);
    floats("fma.rn.f32 %d, %a, %b, %c;", |a, b, c| a.mul_add(b, c));
    floats("div.rn.f32 %d, %a, %b;", |a, b, _| a / b);
    floats("sqrt.rn.f32 %d, %a;", |a, _, _| a.sqrt());
    floats("neg.f32 %d, %a;", |a, _, _| -a);
    floats("min.f32 %d, %a, %b;", |a, b, _| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() | b.to_bits()),
        _ => a.min(b),
    });
    floats("max.NaN.f32 %d, %a, %b;", |a, b, _| match (a.is_nan() || b.is_nan(), a == b) {
        (true, _) => f32::NAN,
        (_, true) => f32::from_bits(a.to_bits() & b.to_bits()),
        _ => a.max(b),
    });
    let ftz = |v: f32| if v.is_subnormal() { 0f32.copysign(v) } else { v };
    floats("mul.rn.ftz.f32 %d, %a, %b;", move |a, b, _| ftz(ftz(a) * ftz(b)));
}

#[test]
fn conversions() {
    integers("cvt.rzi.s32.f32 %d, %a;", |a, _, _| f32::from_bits(a) as i32 as u32);
    integers("cvt.rni.u32.f32 %d, %a;", |a, _, _| f32::from_bits(a).round_ties_even() as u32);
    floats("cvt.rn.f32.s32 %d, %a;", |a, _, _| a.to_bits() as i32 as f32);
    floats("cvt.rmi.f32.f32 %d, %a;", |a, _, _| a.floor());
    floats("cvt.f64.f32 %w1, %a;\ncvt.rn.f32.f64 %d, %w1;", |a, _, _| a);
    integers("cvt.s32.s8 %d, %a;", |a, _, _| a as i8 as u32);
    integers("cvt.u16.u32 %h1, %a;\ncvt.s32.s16 %d, %h1;", |a, _, _| a as i16 as u32);
    let half = |v: f32| if v.is_nan() { 0x7fff } else { u32::from(f16::from_f32(v).to_bits()) };
    let brain = |v: f32| if v.is_nan() { 0x7fff } else { u32::from(bf16::from_f32(v).to_bits()) };
    integers("cvt.rn.f16x2.f32 %d, %a, %b;", move |a, b, _| half(f32::from_bits(a)) << 16 | half(f32::from_bits(b)));
    integers("cvt.rn.bf16x2.f32 %d, %a, %b;", move |a, b, _| brain(f32::from_bits(a)) << 16 | brain(f32::from_bits(b)));
    floats("cvt.u16.u32 %h1, %a;\ncvt.f32.f16 %d, %h1;", |a, _, _| f16::from_bits(a.to_bits() as u16).to_f32());
}

#[test]
fn half_precision() {
    let pair = |op: fn(f16, f16) -> f16| {
        move |a: u32, b: u32, _| {
            let half = |shift: u32| {
                let value = op(f16::from_bits((a >> shift) as u16), f16::from_bits((b >> shift) as u16));
                u32::from(if value.is_nan() { 0x7fff } else { value.to_bits() })
            };
            half(16) << 16 | half(0)
        }
    };
    integers("add.rn.f16x2 %d, %a, %b;", pair(|a, b| f16::from_f64(a.to_f64() + b.to_f64())));
    integers("mul.rn.f16x2 %d, %a, %b;", pair(|a, b| f16::from_f64(a.to_f64() * b.to_f64())));
}

#[test]
fn lanes_exchange() {
    // Only the first warp is compared: its lanes' values are the first 32 triples.
    let shuffle = |line: &str, source: fn(usize) -> usize| {
        let results = run(line);
        for lane in 0..32 {
            assert_eq!(results[lane].1, results[source(lane)].0[0], "{line}, lane {lane}");
        }
    };
    shuffle("shfl.sync.bfly.b32 %d, %a, 5, 31, -1;", |lane| lane ^ 5);
    shuffle("shfl.sync.up.b32 %d, %a, 3, 0, -1;", |lane| if lane < 3 { lane } else { lane - 3 });
    shuffle("shfl.sync.down.b32 %d, %a, 4, 31, -1;", |lane| if lane + 4 > 31 { lane } else { lane + 4 });
    shuffle("shfl.sync.idx.b32 %d, %a, 2, 0x181f, -1;", |lane| lane / 8 * 8 + 2);
    let results = run("setp.gt.u32 %p, %a, 100;\nvote.sync.ballot.b32 %d, %p, -1;");
    let ballot = (0..32).filter(|&lane| results[lane].0[0] > 100).fold(0, |set, lane| set | 1 << lane);
    assert!(results[..32].iter().all(|&(_, d)| d == ballot));
    let results = run("redux.sync.max.s32 %d, %a, -1;");
    let largest = results[..32].iter().map(|(values, _)| values[0] as i32).max();
    assert!(results[..32].iter().all(|&(_, d)| Some(d as i32) == largest));
}
