//! Warp matrix products of all types, compared with exact sums: `mma` with fragments in PTX's layout, and `wmma`.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, PtxModule};
use half::{bf16, f16};

const HEAD: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n";

/// A pseudo-random generator with a long period.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// Encodes a small integer in a type.
fn encode(ty: &str, value: i32) -> u32 {
    match ty {
        "f16" => f16::from_f32(value as f32).to_bits().into(),
        "bf16" => bf16::from_f32(value as f32).to_bits().into(),
        "s8" | "u8" => value as u8 as u32,
        "s32" => value as u32,
        // Integers up to eight are 1.m * 2^e with e up to 3.
        "e4m3" | "e5m2" if value == 0 => 0,
        "e4m3" | "e5m2" => {
            let (bits, bias) = if ty == "e4m3" { (3, 7) } else { (2, 15) };
            let exponent = value.unsigned_abs().ilog2();
            let low = (value.unsigned_abs() << bits >> exponent) & ((1 << bits) - 1);
            assert_eq!((low | 1 << bits) << exponent >> bits, value.unsigned_abs());
            u32::from(value < 0) << 7 | (exponent + bias) << bits | low
        }
        // Set the low bits that tf32 ignores. They must not change the result.
        "tf32" => (value as f32).to_bits() | 0x1fff,
        _ => (value as f32).to_bits(),
    }
}

fn decode(ty: &str, bits: u32) -> f64 {
    match ty {
        "f16" => f16::from_bits(bits as u16).into(),
        "s32" => (bits as i32).into(),
        _ => f32::from_bits(bits).into(),
    }
}

fn bits_of(ty: &str) -> usize {
    match ty {
        "f16" | "bf16" => 16,
        "s8" | "u8" | "e4m3" | "e5m2" => 8,
        _ => 32,
    }
}

/// A random element that every type can represent.
fn element(ty: &str, random: &mut Random) -> i32 {
    let value = (random.next() % 9) as i32 - 4;
    if ty == "u8" { value.abs() * 60 } else { value }
}

/// The row (or column) and depth of element `i` of a lane's fragment, from the tables of the PTX manual.
fn place(first: bool, depth: usize, bits: usize, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    let per = 32 / bits;
    let (register, inside) = (i / per, i % per);
    match (first, register) {
        _ if depth * bits < 128 && register > 1 => unreachable!(),
        (true, 0) => (group, thread * per + inside),
        (true, 1) => (group + 8, thread * per + inside),
        (true, 2) => (group, thread * per + inside + 4 * per),
        (true, _) => (group + 8, thread * per + inside + 4 * per),
        (false, 0) => (group, thread * per + inside),
        (false, _) => (group, thread * per + inside + 4 * per),
    }
}

/// Runs a product of random matrices and compares each element of the result with the exact sum.
fn check_mma(shape: &str, depth: usize, [d, a, b, c]: [&str; 4], modifier: &str, old: i32) {
    let mut random = Random(depth as u64 * 7 + 1);
    let first: Vec<Vec<i32>> = (0..16).map(|_| (0..depth).map(|_| element(a, &mut random)).collect()).collect();
    let second: Vec<Vec<i32>> = (0..8).map(|_| (0..depth).map(|_| element(b, &mut random)).collect()).collect();
    let (bits, sum_bits) = (bits_of(a), bits_of(d));
    let (a_count, b_count, sums) = (depth * bits / 64, depth * bits / 128, if sum_bits == 16 { 2 } else { 4 });
    let sum_place = |lane: usize, i: usize| (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
    let start = |row: usize, column: usize| if old != 0 { old } else { (row * 8 + column) as i32 - 50 };
    let mut input = Vec::new();
    for lane in 0..32 {
        let mut words = vec![0u32; a_count + b_count + sums];
        for i in 0..a_count * 32 / bits {
            let (row, k) = place(true, depth, bits, lane, i);
            words[i * bits / 32] |= encode(a, first[row][k]) << (i * bits % 32);
        }
        for i in 0..b_count * 32 / bits {
            let (column, k) = place(false, depth, bits, lane, i);
            words[a_count + i * bits / 32] |= encode(b, second[column][k]) << (i * bits % 32);
        }
        for i in 0..4 {
            let (row, column) = sum_place(lane, i);
            words[a_count + b_count + i * sum_bits / 32] |= encode(c, start(row, column)) << (i * sum_bits % 32);
        }
        input.extend(words);
    }
    let registers = |from: usize, count: usize| {
        let names: Vec<String> = (from..from + count).map(|i| format!("%r{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let words = a_count + b_count + sums;
    let loads: String = (0..words).map(|i| format!("ld.global.u32 %r{i}, [%d1+{}];\n", 4 * i)).collect();
    let stores: String = (0..sums).map(|i| format!("st.global.u32 [%d2+{}], %r{};\n", 4 * i, 20 + i)).collect();
    let (ra, rb, rc) = (registers(0, a_count), registers(a_count, b_count), registers(a_count + b_count, sums));
    let rd = registers(20, sums);
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out) {{ .reg .b32 %r<30>; .reg .b64 %d<4>;
         ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r29, %tid.x;
         mad.wide.u32 %d1, %r29, {}, %d1; mad.wide.u32 %d2, %r29, {}, %d2; {loads}
         mma.sync.aligned.{shape}.row.col{modifier}.{d}.{a}.{b}.{c} {rd}, {ra}, {rb}, {rc}; {stores} ret; }}",
        4 * words,
        4 * sums
    );
    let module = PtxModule::parse(&text).unwrap();
    let mut device = EmulatedDevice::new();
    let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (from, to) = (device.alloc_from("in", &bytes), device.alloc(32 * sums * 4));
    let report = device.launch(&module, "k", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(from), Arg::Ptr(to)]).unwrap();
    assert_eq!(report.total.tensor_flops, 2 * 16 * 8 * depth as u64);
    let found = device.read(to, 32 * sums * 4).unwrap();
    let found: Vec<u32> = found.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    for (lane, words) in found.chunks_exact(sums).enumerate() {
        for i in 0..4 {
            let (row, column) = sum_place(lane, i);
            let bits = words[i * sum_bits / 32] >> (i * sum_bits % 32);
            let products = first[row].iter().zip(&second[column]).map(|(a, b)| i64::from(a * b)).sum::<i64>();
            let exact = products + i64::from(start(row, column));
            let expected = match (d, modifier) {
                ("s32", "") => f64::from(exact as i32),
                ("s32", _) => exact.clamp(i32::MIN.into(), i32::MAX.into()) as f64,
                _ => exact as f64,
            };
            assert_eq!(decode(d, bits), expected, "{shape} {d} {a} {b}: row {row}, column {column}");
        }
    }
}

#[test]
fn products_of_all_types_are_exact_sums() {
    check_mma("m16n8k16", 16, ["f32", "f16", "f16", "f32"], "", 0);
    check_mma("m16n8k8", 8, ["f32", "bf16", "bf16", "f32"], "", 0);
    check_mma("m16n8k8", 8, ["f32", "tf32", "tf32", "f32"], "", 0);
    check_mma("m16n8k4", 4, ["f32", "tf32", "tf32", "f32"], "", 0);
    for (a, b) in [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")] {
        check_mma("m16n8k32", 32, ["f32", a, b, "f32"], "", 0);
        check_mma("m16n8k32", 32, ["f16", a, b, "f16"], "", 0);
    }
    for (a, b) in [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")] {
        check_mma("m16n8k32", 32, ["s32", a, b, "s32"], "", 0);
        check_mma("m16n8k16", 16, ["s32", a, b, "s32"], "", 0);
    }
}

#[test]
fn integer_sums_wrap_or_saturate() {
    check_mma("m16n8k32", 32, ["s32", "u8", "u8", "s32"], "", i32::MAX - 1000);
    check_mma("m16n8k32", 32, ["s32", "u8", "u8", "s32"], ".satfinite", i32::MAX - 1000);
    check_mma("m16n8k16", 16, ["s32", "u8", "s8", "s32"], ".satfinite", i32::MIN + 100);
}

/// The layouts of a `wmma` product: first factor, second factor, loaded sums and stored sums.
type Layouts = [&'static str; 4];

/// Runs a `wmma` product of random matrices with `threads` threads. Returns the stored sums and the exact sums.
fn wmma(
    shape: &str,
    [m, n, k]: [usize; 3],
    [d, a, b, c]: [&str; 4],
    layouts: Layouts,
    threads: u32,
) -> Result<(Vec<f64>, Vec<f64>), Box<Fault>> {
    let mut random = Random((m * n + k) as u64);
    let pad = 16; // the stride is larger than a row
    // The index of element (i, j) in a matrix with `rows` rows.
    let at = |row_major: bool, rows: usize, columns: usize, i: usize, j: usize| {
        if row_major { i * (columns + pad) + j } else { j * (rows + pad) + i }
    };
    let mut matrix = |ty: &str, rows: usize, columns: usize, layout: &str| {
        let mut bytes = vec![0u8; (rows + pad) * (columns + pad) * bits_of(ty) / 8];
        let values: Vec<i32> = (0..rows * columns).map(|_| element(ty, &mut random)).collect();
        for (index, &value) in values.iter().enumerate() {
            let place = at(layout == "row", rows, columns, index / columns, index % columns) * bits_of(ty) / 8;
            let size = bits_of(ty) / 8;
            bytes[place..place + size].copy_from_slice(&encode(ty, value).to_le_bytes()[..size]);
        }
        (bytes, values)
    };
    let ((a_bytes, first), (b_bytes, second)) = (matrix(a, m, k, layouts[0]), matrix(b, k, n, layouts[1]));
    let (c_bytes, old) = matrix(c, m, n, layouts[2]);
    let stride = |layout: &str, rows: usize, columns: usize| pad + if layout == "row" { columns } else { rows };
    let count = |ty: &str, elements: usize, factor: bool| match ty {
        "f16" if factor => 8,
        _ => elements * bits_of(ty) / 1024,
    };
    let list = |letter: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("%{letter}{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let (ra, rb) = (list("a", count(a, m * k, true)), list("b", count(b, k * n, true)));
    let (rc, rd) = (list("c", count(c, m * n, false)), list("e", count(d, m * n, false)));
    let types = if a == "f16" { format!("{d}.{c}") } else { format!("{d}.{a}.{b}.{c}") };
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{
         .reg .b32 %a<8>; .reg .b32 %b<8>; .reg .b32 %c<8>; .reg .b32 %e<8>; .reg .b64 %d<5>;
         ld.param.u64 %d1, [pa]; ld.param.u64 %d2, [pb]; ld.param.u64 %d3, [pc]; ld.param.u64 %d4, [pd];
         wmma.load.a.sync.aligned.{0}.{shape}.global.{a} {ra}, [%d1], {sa};
         wmma.load.b.sync.aligned.{1}.{shape}.{b} {rb}, [%d2], {sb};
         wmma.load.c.sync.aligned.{2}.{shape}.global.{c} {rc}, [%d3], {sc};
         wmma.mma.sync.aligned.{0}.{1}.{shape}.{types} {rd}, {ra}, {rb}, {rc};
         wmma.store.d.sync.aligned.{3}.{shape}.global.{d} [%d4], {rd}, {sd}; ret; }}",
        layouts[0],
        layouts[1],
        layouts[2],
        layouts[3],
        sa = stride(layouts[0], m, k),
        sb = stride(layouts[1], k, n),
        sc = stride(layouts[2], m, n),
        sd = stride(layouts[3], m, n),
    );
    let module = PtxModule::parse(&text).unwrap();
    let mut device = EmulatedDevice::new();
    let [pa, pb, pc] = [("a", &a_bytes), ("b", &b_bytes), ("c", &c_bytes)].map(|(name, x)| device.alloc_from(name, x));
    let out = device.alloc_from("d", &vec![0; (m + pad) * (n + pad) * 4]);
    device.launch(&module, "k", [1; 3], [threads, 1, 1], 0, &[pa, pb, pc, out].map(Arg::Ptr))?;
    let bytes = device.read(out, (m + pad) * (n + pad) * 4).unwrap();
    let found = (0..m * n).map(|index| {
        let place = at(layouts[3] == "row", m, n, index / n, index % n) * bits_of(d) / 8;
        let mut word = [0; 4];
        word[..bits_of(d) / 8].copy_from_slice(&bytes[place..place + bits_of(d) / 8]);
        decode(d, u32::from_le_bytes(word))
    });
    let exact = (0..m * n).map(|index| {
        let (row, column) = (index / n, index % n);
        f64::from((0..k).map(|step| first[row * k + step] * second[step * n + column]).sum::<i32>() + old[index])
    });
    Ok((found.collect(), exact.collect()))
}

#[test]
fn fragments_are_loaded_multiplied_and_stored() {
    let layouts: [Layouts; 3] =
        [["row", "col", "row", "row"], ["col", "row", "col", "row"], ["row", "row", "row", "col"]];
    for (shape, sizes) in [("m16n16k16", [16, 16, 16]), ("m32n8k16", [32, 8, 16]), ("m8n32k16", [8, 32, 16])] {
        for types in [
            ["f32", "f16", "f16", "f32"],
            ["f16", "f16", "f16", "f16"],
            ["f32", "f16", "f16", "f16"],
            ["f16", "f16", "f16", "f32"],
            ["f32", "bf16", "bf16", "f32"],
            ["s32", "s8", "s8", "s32"],
            ["s32", "u8", "u8", "s32"],
        ] {
            for layouts in layouts {
                let (found, exact) = wmma(shape, sizes, types, layouts, 32).unwrap();
                assert_eq!(found, exact, "{shape} {types:?} {layouts:?}");
            }
        }
    }
    let (found, exact) = wmma("m16n16k8", [16, 16, 8], ["f32", "tf32", "tf32", "f32"], layouts[0], 32).unwrap();
    assert_eq!(found, exact);
}

#[test]
fn fragments_need_a_whole_warp() {
    let types = ["f32", "f16", "f16", "f32"];
    let fault = wmma("m16n16k16", [16; 3], types, ["row", "col", "row", "row"], 31).unwrap_err();
    assert_eq!(fault.kind, FaultKind::MissingLanes, "{fault}");
}
