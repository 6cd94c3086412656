//! Instruction forms that other compilers emit, each checked against the value it should compute.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, PtxModule};
use half::{bf16, f16};

/// The input of a lane: four 64-bit numbers. Narrower registers hold their low bits.
type Numbers = [u64; 4];

/// A one-warp kernel around `body`. A lane's inputs are in `%d0` to `%d3`, and their low bits in `%r`, `%h`, `%f` and
/// `%g`. `body` leaves its result in `%d9`.
fn kernel(body: &str) -> String {
    let narrow: String = (0..4)
        .map(|i| {
            format!(
                "ld.global.u64 %d{i}, [%d8+{at}]; cvt.u32.u64 %r{i}, %d{i}; cvt.u16.u64 %h{i}, %d{i};
                 mov.b32 %f{i}, %r{i}; mov.b64 %g{i}, %d{i};\n",
                at = 8 * i
            )
        })
        .collect();
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
         .visible .entry k(.param .u64 in, .param .u64 out) {{
         .reg .pred %p<6>; .reg .b16 %h<12>; .reg.b32 %r<24>; .reg .b64 %d<24>; .reg .f32 %f<12>; .reg .f64 %g<12>;
         .shared .align 128 .b8 sm[2048];
         ld.param.u64 %d20, [in]; ld.param.u64 %d21, [out]; mov.u32 %r20, %tid.x;
         mad.wide.u32 %d8, %r20, 32, %d20; mad.wide.u32 %d22, %r20, 8, %d21;
         {narrow}{body}
         st.global.u64 [%d22], %d9;
         ret; }}"
    )
}

/// Runs `body` and returns the result of each lane, or the fault.
fn run(body: &str, inputs: &[Numbers]) -> Result<Vec<u64>, Box<Fault>> {
    let module = PtxModule::parse(&kernel(body)).unwrap();
    module.check().unwrap();
    let mut device = EmulatedDevice::new();
    let bytes: Vec<u8> = (0..32).flat_map(|lane| inputs[lane % inputs.len()]).flat_map(u64::to_le_bytes).collect();
    let (from, to) = (device.alloc_from("in", &bytes), device.alloc(32 * 8));
    device.launch(&module, "k", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(from), Arg::Ptr(to)])?;
    let bytes = device.read(to, 32 * 8).unwrap();
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Test inputs that combine special values and random numbers.
fn samples() -> Vec<Numbers> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let special = [0, 1, 7, 31, 32, 33, 63, 64, 255, 0x8000_0000, 0xffff_ffff, u64::MAX, 1 << 63];
    (0..32).map(|_| [0; 4].map(|_: u64| if next() % 3 == 0 { special[next() as usize % 13] } else { next() })).collect()
}

/// Compares the results of `body` with the expected values on all samples.
fn check(body: &str, expected: impl Fn(Numbers) -> u64) {
    let inputs = samples();
    for (found, input) in run(body, &inputs).unwrap().into_iter().zip(inputs) {
        assert_eq!(found, expected(input), "`{body}` of {input:x?}");
    }
}

/// The same check for an instruction with a 32-bit result in `%r9`.
fn check_word(instruction: &str, expected: impl Fn([u32; 4]) -> u32) {
    check(&format!("{instruction} cvt.u64.u32 %d9, %r9;"), |input| expected(input.map(|x| x as u32)).into());
}

#[test]
fn bit_fields_and_masks() {
    check_word("bmsk.clamp.b32 %r9, %r0, %r1;", |[a, b, ..]| {
        (0..32)
            .filter(|&bit| bit >= a && u64::from(bit) < u64::from(a) + u64::from(b))
            .fold(0, |mask, bit| mask | 1 << bit)
    });
    check_word("bmsk.wrap.b32 %r9, %r0, %r1;", |[a, b, ..]| (((1u64 << (b % 32)) - 1) << (a % 32)) as u32);
    check("bfi.b64 %d9, %d0, %d1, %r2, %r3;", |[a, b, at, count]| {
        let (at, count) = (at & 255, count & 255);
        (0..64)
            .filter(|&bit| bit >= at && bit < at + count)
            .fold(b, |value, bit| value & !(1 << bit) | (a >> (bit - at) & 1) << bit)
    });
    check_word("bfind.shiftamt.u32 %r9, %r0;", |[a, ..]| if a == 0 { u32::MAX } else { a.leading_zeros() });
    check_word("bfind.shiftamt.s32 %r9, %r0;", |[a, ..]| match (a as i32) ^ (a as i32 >> 31) {
        0 => u32::MAX,
        value => value.leading_zeros(),
    });
    for (mode, choose) in [
        ("f4e", (|c, i| c + i) as fn(u32, u32) -> u32),
        ("b4e", |c, i| (c + 8 - i) % 8),
        ("rc8", |c, _| c),
        ("ecl", |c, i| c.max(i)),
        ("ecr", |c, i| c.min(i)),
        ("rc16", |c, i| c % 2 * 2 + i % 2),
    ] {
        check_word(&format!("prmt.b32.{mode} %r9, %r0, %r1, %r2;"), |[a, b, c, _]| {
            let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
            u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[choose(c % 4, i) as usize]))
        });
    }
}

#[test]
fn distances_dot_products_and_choices() {
    check_word("sad.u32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| a.abs_diff(b).wrapping_add(c));
    check_word("sad.s32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| (a as i32).abs_diff(b as i32).wrapping_add(c));
    check_word("dp4a.s32.u32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| {
        let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        pairs.fold(c, |sum, (a, b)| sum.wrapping_add((i32::from(a as i8) * i32::from(b)) as u32))
    });
    check_word("slct.b32.s32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| if (c as i32) < 0 { b } else { a });
    check_word("slct.b32.f32 %r9, %r0, %r1, %f2;", |[a, b, c, _]| if f32::from_bits(c) >= 0.0 { a } else { b });
    check_word("max.s16x2 %r9, %r0, %r1;", |[a, b, ..]| {
        let halves = |x: u32| [x as i16, (x >> 16) as i16];
        let ([a, c], [b, d]) = (halves(a), halves(b));
        u32::from(a.max(b) as u16) | u32::from(c.max(d) as u16) << 16
    });
    check_word("add.u16x2 %r9, %r0, %r1;", |[a, b, ..]| {
        (a as u16).wrapping_add(b as u16) as u32 | u32::from(((a >> 16) as u16).wrapping_add((b >> 16) as u16)) << 16
    });
}

#[test]
fn carries_propagate_to_the_next_sum() {
    let join = "mov.b64 %d9, {%r9, %r10};";
    let low = |x: u64| x & 0xffff_ffff;
    // 64-bit arithmetic from 32-bit words. `%d0` and `%d1` are split into words first.
    let words = "mov.b64 {%r4, %r5}, %d0; mov.b64 {%r6, %r7}, %d1;";
    check(&format!("{words} add.cc.u32 %r9, %r4, %r6; addc.u32 %r10, %r5, %r7; {join}"), |[a, b, ..]| {
        a.wrapping_add(b)
    });
    check(&format!("{words} sub.cc.u32 %r9, %r4, %r6; subc.u32 %r10, %r5, %r7; {join}"), |[a, b, ..]| {
        a.wrapping_sub(b)
    });
    check(&format!("{words} mad.lo.cc.u32 %r9, %r4, %r6, %r5; madc.hi.u32 %r10, %r4, %r6, 0; {join}"), |[a, b, ..]| {
        (low(a) * low(b)).wrapping_add(a >> 32)
    });
    // The carry of the second sum feeds the third.
    check(
        &format!(
            "{words} add.cc.u32 %r9, %r4, %r6; addc.cc.u32 %r9, %r5, %r7; addc.u32 %r9, 0, 0; cvt.u64.u32 %d9, %r9;"
        ),
        |[a, b, ..]| a.checked_add(b).is_none().into(),
    );
    check("add.cc.u64 %d9, %d0, %d1; addc.u64 %d9, 0, 0;", |[a, b, ..]| a.checked_add(b).is_none().into());
}

#[test]
fn conversions_saturate_and_round_in_each_direction() {
    check_word("cvt.sat.u8.s32 %r9, %r0;", |[a, ..]| (a as i32).clamp(0, 255) as u32);
    check("cvt.sat.s32.s64 %r9, %d0; cvt.u64.u32 %d9, %r9;", |[a, ..]| {
        u64::from((a as i64).clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32)
    });
    let double = |x: u64| f64::from_bits(x);
    check("cvt.rzi.s32.f64 %r9, %g0; cvt.u64.u32 %d9, %r9;", |[a, ..]| {
        let value = double(a);
        u64::from(if value.is_nan() { i32::MIN as u32 } else { value.trunc() as i32 as u32 })
    });
    check("cvt.rni.u32.f64 %r9, %g0; cvt.u64.u32 %d9, %r9;", |[a, ..]| {
        let value = double(a);
        u64::from(if value.is_nan() { 1 << 31 } else { value.round_ties_even() as u32 })
    });
    check("cvt.rn.bf16.f16 %h9, %h0; cvt.u64.u16 %d9, %h9;", |[a, ..]| {
        let half = f16::from_bits(a as u16);
        if half.is_nan() { 0x7fff } else { bf16::from_f32(half.to_f32()).to_bits().into() }
    });
    check("cvt.rn.f16.bf16 %h9, %h0; cvt.u64.u16 %d9, %h9;", |[a, ..]| {
        let half = bf16::from_bits(a as u16);
        if half.is_nan() { 0x7fff } else { f16::from_f32(half.to_f32()).to_bits().into() }
    });
    // Extra bits are cut off, never rounded up. 2 + 7/512 becomes 2, 65,280 is exact, and 65,536 becomes the greatest
    // f16.
    for (types, half, expected) in
        [("bf16.f16", 0xc007, 0xc000), ("f16.bf16", 0x477f, 0x7bf8), ("f16.bf16", 0x4780, 0x7bff)]
    {
        let body = format!("cvt.rz.{types} %h9, %h0; cvt.u64.u16 %d9, %h9;");
        assert_eq!(run(&body, &[[half, 0, 0, 0]]).unwrap()[0], expected, "{types} {half:#x}");
    }
    check("cvt.rp.f32.s32 %f9, %r0; mov.b32 %r9, %f9; cvt.u64.u32 %d9, %r9;", |[a, ..]| {
        let (value, nearest) = (a as i32, a as i32 as f32);
        u64::from(if f64::from(nearest) < f64::from(value) { nearest.next_up() } else { nearest }.to_bits())
    });
    check("cvt.rz.f32.f64 %f9, %g0; mov.b32 %r9, %f9; cvt.u64.u32 %d9, %r9;", |[a, ..]| {
        let (value, nearest) = (double(a), double(a) as f32);
        let away = value.is_finite() && f64::from(nearest).abs() > value.abs();
        let cut = if away { f32::from_bits(nearest.to_bits() - 1) } else { nearest };
        u64::from(if value.is_nan() { (value as f32).to_bits() } else { cut.to_bits() })
    });
}

#[test]
fn sums_round_in_each_direction() {
    let word = |x: f32| u64::from(x.to_bits());
    let one_and_little = [[1f32.to_bits().into(), 1e-30f32.to_bits().into(), 0, 0]];
    let run = |instruction: &str| {
        run(&format!("{instruction} mov.b32 %r9, %f9; cvt.u64.u32 %d9, %r9;"), &one_and_little).unwrap()[0]
    };
    assert_eq!(run("add.rp.f32 %f9, %f0, %f1;"), word(1f32.next_up()));
    assert_eq!(run("add.rm.f32 %f9, %f0, %f1;"), word(1.0));
    assert_eq!(run("sub.rz.f32 %f9, %f0, %f1;"), word(1f32.next_down()));
    assert_eq!(run("fma.rp.f32 %f9, %f0, %f0, %f1;"), word(1f32.next_up()));
    assert_eq!(run("mul.rp.f32 %f9, %f1, %f1;"), word(f32::from_bits(1)));
    assert_eq!(run("add.sat.f32 %f9, %f0, %f0;"), word(1.0));
}

#[test]
fn number_tests_and_comparisons_with_numeric_results() {
    let answer = "selp.b32 %r9, 1, 0, %p0;";
    check_word(&format!("testp.infinite.f32 %p0, %f0; {answer}"), |[a, ..]| f32::from_bits(a).is_infinite().into());
    check_word(&format!("testp.subnormal.f32 %p0, %f0; {answer}"), |[a, ..]| f32::from_bits(a).is_subnormal().into());
    check_word(&format!("testp.notanumber.f32 %p0, %f0; {answer}"), |[a, ..]| f32::from_bits(a).is_nan().into());
    check_word("set.lt.u32.u32 %r9, %r0, %r1;", |[a, b, ..]| if a < b { u32::MAX } else { 0 });
    check_word("set.ge.f32.s32 %f9, %r0, %r1; mov.b32 %r9, %f9;", |[a, b, ..]| {
        if a as i32 >= b as i32 { 1f32.to_bits() } else { 0 }
    });
    check_word("set.eq.f16.f16 %h9, %h0, %h0; cvt.u32.u16 %r9, %h9;", |[a, ..]| {
        if half::f16::from_bits(a as u16).is_nan() { 0 } else { 0x3c00 }
    });
}

#[test]
fn isspacep_tells_address_spaces_apart() {
    let question = |space: &str, address: &str| {
        let body = format!("{address} isspacep.{space} %p0, %d4; selp.b64 %d9, 1, 0, %p0;");
        run(&body, &samples()).unwrap()[0]
    };
    let shared = "cvta.shared.u64 %d4, sm;";
    let parameter = "mov.b64 %d4, in; cvta.param.u64 %d4, %d4;";
    let global = "mov.b64 %d4, %d20;";
    for (space, answers) in [("shared", [1, 0, 0]), ("param", [0, 1, 0]), ("global", [0, 0, 1]), ("local", [0, 0, 0])] {
        assert_eq!([shared, parameter, global].map(|address| question(space, address)), answers, "{space}");
    }
}

#[test]
fn parameters_have_addresses() {
    let pointer = run("mov.b64 %d9, %d21;", &samples()).unwrap()[0];
    for body in [
        "mov.b64 %d4, out; cvta.param.u64 %d5, %d4; ld.u64 %d9, [%d5];",
        "mov.b64 %d4, in; ld.param.u64 %d9, [%d4+8];",
        "mov.b32 %r4, in; cvt.u64.u32 %d4, %r4; cvta.param.u64 %d5, %d4; ld.u64 %d9, [%d5+8];",
    ] {
        assert_eq!(run(body, &samples()).unwrap()[0], pointer, "{body}");
    }
    let fault = run("mov.b64 %d4, in; cvta.param.u64 %d5, %d4; ld.u64 %d9, [%d5+16];", &samples()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
    assert!(fault.message.contains("offset 16 of the kernel's parameters, which have 16 bytes"), "{fault}");
    let fault = run("mov.b64 %d9, in; cvta.param.u64 %d5, %d9; st.u64 [%d5], %d9;", &samples()).unwrap_err();
    assert!(fault.message.contains("can only be read"), "{fault}");
}

#[test]
fn votes_cover_all_lanes() {
    let lane_zero = |body: &str, inputs: &[Numbers]| run(body, inputs).unwrap()[0];
    let matched = "match.all.sync.b32 %r9|%p0, %r0, -1; selp.b32 %r10, 1, 0, %p0; mov.b64 %d9, {%r9, %r10};";
    assert_eq!(lane_zero(matched, &[[5, 0, 0, 0]]), 1 << 32 | 0xffff_ffff);
    assert_eq!(lane_zero(matched, &[[5, 0, 0, 0], [6, 0, 0, 0]]), 0);
    let ask = |what: &str| {
        let body = format!("setp.gt.u32 %p1, %r0, 3; {what}");
        let some: Vec<Numbers> = (0..32).map(|lane| [lane, 0, 0, 0]).collect();
        [lane_zero(&body, &some), lane_zero(&body, &[[9, 0, 0, 0]]), lane_zero(&body, &[[0, 0, 0, 0]])]
    };
    assert_eq!(ask("bar.red.popc.u32 %r9, 0, %p1; cvt.u64.u32 %d9, %r9;"), [28, 32, 0]);
    assert_eq!(ask("bar.red.and.pred %p2, 0, %p1; selp.b64 %d9, 1, 0, %p2;"), [0, 1, 0]);
    assert_eq!(ask("barrier.cta.red.or.pred %p2, 0, !%p1; selp.b64 %d9, 1, 0, %p2;"), [1, 0, 1]);
}

#[test]
fn matrices_go_to_shared_memory_and_back() {
    // Rows of 16 bytes. Each lane provides the address of one row.
    let address = "mov.u32 %r8, sm; mad.lo.u32 %r8, %r20, 16, %r8;";
    let store = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r8], {%r0, %r1, %r2, %r3};";
    for (load, back) in [
        ("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%r4, %r5, %r6, %r7}, [%r8];", true),
        ("ldmatrix.sync.aligned.trans.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r8];", false),
    ] {
        let body = format!(
            "{address} {store} bar.sync 0; {load} xor.b32 %r4, %r4, %r0; xor.b32 %r5, %r5, %r1;
            xor.b32 %r6, %r6, %r2; xor.b32 %r7, %r7, %r3; or.b32 %r4, %r4, %r5; or.b32 %r6, %r6, %r7;
            or.b32 %r4, %r4, %r6; cvt.u64.u32 %d9, %r4;"
        );
        assert_eq!(run(&body, &samples()).unwrap().iter().all(|&difference| difference == 0), back, "{load}");
    }
    // Transposing twice gives the original.
    let twice = format!(
        "{address} stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r8], {{%r0}}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%r4}}, [%r8]; xor.b32 %r4, %r4, %r0; cvt.u64.u32 %d9, %r4;"
    );
    assert!(run(&twice, &samples()).unwrap().iter().all(|&difference| difference == 0));
}

#[test]
fn hints_and_prototypes_change_nothing() {
    let policy = "createpolicy.fractional.L2::evict_first.b64 %d4, 1.0;";
    check(&format!("{policy} ld.global.L2::cache_hint.u64 %d9, [%d8+8], %d4;"), |[_, b, ..]| b);
    check("proto: .callprototype (.param .b32 _) _ (.param .b32 _); pmevent 1; mov.b64 %d9, %d2;", |[_, _, c, _]| c);
}

#[test]
fn pairs_of_halves_are_compared() {
    let halves = |x: u32| [x as u16, (x >> 16) as u16].map(half::f16::from_bits);
    let brains = |x: u32| [x as u16, (x >> 16) as u16].map(half::bf16::from_bits);
    let pair = |holds: [bool; 2], one: u32| (u32::from(holds[0]) * one) | ((u32::from(holds[1]) * one) << 16);
    check_word("set.gt.f16x2.f16x2 %r9, %r0, %r1;", |[a, b, ..]| {
        let ([a, c], [b, d]) = (halves(a), halves(b));
        pair([a > b, c > d], 0x3c00)
    });
    check_word("set.neu.bf16x2.bf16x2 %r9, %r0, %r1;", |[a, b, ..]| {
        let ([a, c], [b, d]) = (brains(a), brains(b));
        pair([a != b, c != d], 0x3f80)
    });
    check_word("set.nan.f16x2.f16x2 %r9, %r0, %r1;", |[a, b, ..]| {
        let ([a, c], [b, d]) = (halves(a), halves(b));
        pair([a.is_nan() || b.is_nan(), c.is_nan() || d.is_nan()], 0x3c00)
    });
}

#[test]
fn doubles_round_in_each_direction() {
    let numbers = [[0.1f64, 3.0, -1e-40, 2.0].map(f64::to_bits)];
    let run =
        |instruction: &str| f64::from_bits(run(&format!("{instruction} mov.b64 %d9, %g9;"), &numbers).unwrap()[0]);
    // Three times the double nearest to 0.1 is halfway between 0.3 and the next double.
    assert_eq!(run("fma.rn.f64 %g9, %g0, %g1, %g2;"), 0.3);
    assert_eq!(run("fma.rm.f64 %g9, %g0, %g1, %g2;"), 0.3);
    assert_eq!(run("fma.rz.f64 %g9, %g0, %g1, %g2;"), 0.3);
    assert_eq!(run("fma.rp.f64 %g9, %g0, %g1, %g2;"), 0.3f64.next_up());
    assert_eq!(run("fma.rp.f64 %g9, %g3, %g3, %g2;"), 4.0);
    assert_eq!(run("fma.rm.f64 %g9, %g3, %g3, %g2;"), 4f64.next_down());
    assert_eq!(run("div.rp.f64 %g9, %g3, %g1;"), (2.0f64 / 3.0).next_up());
    assert_eq!(run("rcp.rm.f64 %g9, %g1;"), 1.0 / 3.0);
    // Approximations read only the upper half of a number and return only the upper half of the result.
    let upper = |x: f64| f64::from_bits(x.to_bits() >> 32 << 32);
    assert_eq!(run("rcp.approx.ftz.f64 %g9, %g1;"), upper(1.0 / 3.0));
    assert_eq!(run("rsqrt.approx.ftz.f64 %g9, %g0;"), upper(1.0 / upper(0.1).sqrt()));
    assert_eq!([run("sqrt.rm.f64 %g9, %g3;"), run("sqrt.rp.f64 %g9, %g3;")], [2f64.sqrt().next_down(), 2f64.sqrt()]);
}

#[test]
fn fp8_and_tf32_conversions() {
    let bits = |x: f32| u64::from(x.to_bits());
    let numbers = [[bits(1.1), bits(-1000.0), bits(f32::NAN), bits(-0.3)]];
    let run = |body: &str| run(body, &numbers).unwrap()[0] as u32;
    let pair = |form: &str| run(&format!("{form} cvt.u64.u16 %d9, %h9;"));
    // 1.125, and the greatest number of each type.
    assert_eq!(pair("cvt.rn.satfinite.e4m3x2.f32 %h9, %f0, %f1;"), 0x39fe);
    assert_eq!(pair("cvt.rn.satfinite.e5m2x2.f32 %h9, %f0, %f1;"), 0x3ce4);
    assert_eq!(pair("cvt.rn.satfinite.e4m3x2.f32 %h9, %f2, %f3;"), 0x7faa);
    assert_eq!(pair("cvt.rn.satfinite.relu.e4m3x2.f32 %h9, %f0, %f3;"), 0x3900);
    let halves = "cvt.rn.f16x2.f32 %r9, %f0, %f1;";
    assert_eq!(pair(&format!("{halves} cvt.rn.satfinite.e4m3x2.f16x2 %h9, %r9;")), 0x39fe);
    assert_eq!(pair(&format!("{halves} cvt.rn.satfinite.relu.e5m2x2.f16x2 %h9, %r9;")), 0x3c00);
    let word = |form: &str| run(&format!("mov.b16 %h9, 0xb97e; {form} cvt.u64.u32 %d9, %r9;"));
    assert_eq!(word("cvt.rn.f16x2.e4m3x2 %r9, %h9;"), 0xbc80_5f00); // -1.125 and 448
    assert_eq!(word("cvt.rn.relu.f16x2.e4m3x2 %r9, %h9;"), 0x0000_5f00);
    assert_eq!(word("cvt.rn.f16x2.e5m2x2 %r9, %h9;"), 0xb900_7fff);
    assert_eq!(word("cvt.rn.relu.f16x2.f32 %r9, %f3, %f0;"), u32::from(half::f16::from_f32(1.1).to_bits()));
    let tie = "mov.b32 %f9, 0x3f801000;"; // halfway between two tf32 numbers
    assert_eq!(word(&format!("{tie} cvt.rna.tf32.f32 %r9, %f9;")), 0x3f80_2000);
    assert_eq!(word(&format!("{tie} cvt.rn.tf32.f32 %r9, %f9;")), 0x3f80_0000);
    assert_eq!(word("cvt.rz.tf32.f32 %r9, %f0;"), 1.1f32.to_bits() & !0x1fff);
}

#[test]
fn a_breakpoint_is_a_trap() {
    let fault = run("brkpt; mov.b64 %d9, 0;", &samples()).unwrap_err();
    assert_eq!((fault.kind, fault.opcode.as_str()), (FaultKind::Trap, "brkpt"));
    assert!(fault.message.contains("breakpoint"), "{fault}");
}
