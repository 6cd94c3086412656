//! Kernels compiled by rustc, compared with host code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use emulator::{Arg, EmulatedDevice, FaultKind, LaunchOptions, PtxModule};
use half::{bf16, f16};

/// A small generator of test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    fn float(&mut self) -> f32 {
        (self.next() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

fn module() -> &'static PtxModule {
    static MODULE: std::sync::OnceLock<PtxModule> = std::sync::OnceLock::new();
    MODULE.get_or_init(|| PtxModule::parse(include_str!("ptx/kernels.ptx")).unwrap())
}

fn bytes<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

fn f32s(device: &EmulatedDevice, at: u64, count: usize) -> Vec<f32> {
    let bytes = device.read(at, count * 4).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn u16s(device: &EmulatedDevice, at: u64, count: usize) -> Vec<u16> {
    device.read(at, count * 2).unwrap().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

/// Options for the natural order and two random ones.
fn orders() -> [LaunchOptions; 3] {
    [0, 1, 2].map(|seed| LaunchOptions { seed, ..LaunchOptions::default() })
}

#[test]
fn saxpy_is_exact_and_coalesced() {
    let (mut random, n) = (Random(7), 4096);
    let (x, y) = (random.floats(n), random.floats(n));
    let mut device = EmulatedDevice::new();
    let px = device.alloc_from("x", &bytes(&x, f32::to_le_bytes));
    let py = device.alloc_from("y", &bytes(&y, f32::to_le_bytes));
    let args = [Arg::F32(1.5), Arg::Ptr(px), Arg::Ptr(py), Arg::U32(n as u32 / 4)];
    let report = device.launch(module(), "saxpy4", [4, 1, 1], [256, 1, 1], 0, &args).unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x.mul_add(1.5, *y)).collect();
    assert_eq!(f32s(&device, py, n), expected);
    assert_eq!(report.total.sectors, report.total.ideal_sectors);
    assert_eq!(report.total.sectors, 3 * n as u64 / 8);
    assert_eq!(report.distinct_sectors, 2 * n as u64 / 8);
    assert_eq!(report.total.divergent, 0);
}

#[test]
fn an_access_beyond_a_buffer_names_it() {
    let mut device = EmulatedDevice::new();
    let zeros = vec![0; 4000];
    let (px, py) = (device.alloc_from("x", &zeros), device.alloc_from("y", &zeros));
    let args = [Arg::F32(1.5), Arg::Ptr(px), Arg::Ptr(py), Arg::U32(256)];
    let fault = device.launch(module(), "saxpy4", [1; 3], [256, 1, 1], 0, &args).unwrap_err();
    assert_eq!((fault.kind, fault.thread), (FaultKind::OutOfBounds, Some([250, 0, 0])));
    assert_eq!(fault.buffer.as_deref(), Some("x"));
    assert!(fault.message.contains("offset 4000 of `x`, which has 4000 bytes"), "{fault}");
    assert_eq!(fault.opcode, "ld.global.v4.b32");
}

#[test]
fn softmax_rows() {
    let (rows, cols) = (16, 1000);
    let x: Vec<f32> = Random(3).floats(rows * cols).iter().map(|v| v * 8.0).collect();
    for options in orders() {
        let mut device = EmulatedDevice::new();
        let (px, po) =
            (device.alloc_from("x", &bytes(&x, f32::to_le_bytes)), device.alloc_named("out", rows * cols * 4));
        let args = [Arg::Ptr(px), Arg::Ptr(po), Arg::U32(rows as u32), Arg::U32(cols as u32)];
        device.launch_with(&options, module(), "softmax", [4, 1, 1], [128, 1, 1], 0, &args).unwrap();
        let out = f32s(&device, po, rows * cols);
        for (row, out) in x.chunks(cols).zip(out.chunks(cols)) {
            let largest = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|v| f64::from(v - largest).exp()).sum();
            for (v, out) in row.iter().zip(out) {
                let expected = f64::from(v - largest).exp() / sum;
                assert!((f64::from(*out) - expected).abs() < 1e-5 * expected + 1e-9);
            }
        }
    }
}

#[test]
fn rmsnorm_rows() {
    let (mut random, rows, n) = (Random(5), 4, 1024);
    let x: Vec<bf16> = random.floats(rows * n).into_iter().map(bf16::from_f32).collect();
    let w: Vec<bf16> = random.floats(n).into_iter().map(bf16::from_f32).collect();
    for options in orders() {
        let mut device = EmulatedDevice::new();
        let px = device.alloc_from("x", &bytes(&x, bf16::to_le_bytes));
        let pw = device.alloc_from("w", &bytes(&w, bf16::to_le_bytes));
        let po = device.alloc_named("out", rows * n * 2);
        let args = [Arg::Ptr(px), Arg::Ptr(pw), Arg::Ptr(po), Arg::U32(n as u32 / 8), Arg::F32(1e-5)];
        let report =
            device.launch_with(&options, module(), "rmsnorm_bf16", [4, 1, 1], [256, 1, 1], 128, &args).unwrap();
        assert_eq!(report.barriers, rows as u64);
        let out = u16s(&device, po, rows * n);
        for row in 0..rows {
            let squares: f64 = x[row * n..][..n].iter().map(|v| v.to_f64().powi(2)).sum();
            let scale = 1.0 / (squares / n as f64 + 1e-5).sqrt();
            for i in 0..n {
                let expected = x[row * n + i].to_f64() * scale * w[i].to_f64();
                let found = bf16::from_bits(out[row * n + i]).to_f64();
                assert!((found - expected).abs() <= expected.abs() * 0.005 + 1e-6);
            }
        }
    }
}

#[test]
fn histogram_by_atomics() {
    let n = 1 << 13;
    let mut random = Random(11);
    let x: Vec<u8> = (0..n).map(|_| (random.next() >> 24 & random.next()) as u8).collect();
    let mut device = EmulatedDevice::new();
    let (px, po) = (device.alloc_from("x", &x), device.alloc_from("bins", &[0; 1024]));
    device.launch(module(), "hist", [8, 1, 1], [256, 1, 1], 1024, &[Arg::Ptr(px), Arg::Ptr(po), Arg::U32(n)]).unwrap();
    let mut expected = [0u32; 256];
    x.iter().for_each(|&v| expected[usize::from(v)] += 1);
    assert_eq!(device.read(po, 1024).unwrap(), bytes(&expected, u32::to_le_bytes));
}

#[test]
fn transposes_and_their_bank_conflicts() {
    let n = 64usize;
    let x: Vec<f32> = (0..n * n).map(|i| i as f32).collect();
    let run = |kernel: &str, shared: usize, grid: usize| {
        let mut device = EmulatedDevice::new();
        let (px, po) = (device.alloc_from("x", &bytes(&x, f32::to_le_bytes)), device.alloc_named("y", n * n * 4));
        let args = [Arg::Ptr(px), Arg::Ptr(po), Arg::U32(n as u32)];
        let report = device.launch(module(), kernel, [grid as u32, 1, 1], [256, 1, 1], shared, &args)?;
        let y = f32s(&device, po, n * n);
        assert!((0..n * n).all(|i| y[i % n * n + i / n] == x[i]));
        Ok::<_, Box<emulator::Fault>>(report.total)
    };
    let (padded, plain) = (run("transpose33", 4224, 4).unwrap(), run("transpose32", 4096, 4).unwrap());
    assert_eq!(padded.bank_conflicts(), 0);
    assert_eq!(plain.wavefronts, 4 * 8 * 4 * 33);
    let naive = run("transpose_naive", 0, n * n / 256).unwrap();
    assert!(naive.sector_ratio() > 4.0 && padded.sector_ratio() == 1.0);
    let race = run("transpose_race", 4224, 4).unwrap_err();
    assert!(matches!(race.kind, FaultKind::SharedRace | FaultKind::Uninitialised), "{race}");
}

#[test]
fn tensor_core_product() {
    let (m, n, k) = (64usize, 64usize, 128usize);
    let mut random = Random(13);
    let a: Vec<f16> = random.floats(m * k).into_iter().map(f16::from_f32).collect();
    let b: Vec<f16> = random.floats(n * k).into_iter().map(f16::from_f32).collect();
    let run = |kernel: &str, options: &LaunchOptions| {
        let mut device = EmulatedDevice::new();
        let pa = device.alloc_from("a", &bytes(&a, f16::to_le_bytes));
        let pb = device.alloc_from("b", &bytes(&b, f16::to_le_bytes));
        let pc = device.alloc_named("c", m * n * 4);
        let sizes = [m, n, k].map(|size| Arg::U32(size as u32));
        let args = [&[Arg::Ptr(pa), Arg::Ptr(pb), Arg::Ptr(pc)][..], &sizes[..]].concat();
        let report = device.launch_with(options, module(), kernel, [1; 3], [128, 1, 1], 20480, &args)?;
        Ok::<_, Box<emulator::Fault>>((report, f32s(&device, pc, m * n)))
    };
    for options in orders() {
        let (report, c) = run("gemm_f16", &options).unwrap();
        assert_eq!(report.total.tensor_flops, 2 * (m * n * k) as u64);
        assert_eq!(report.total.bank_conflicts(), 0);
        for i in 0..m * n {
            let row = a[i / n * k..][..k].iter().zip(&b[i % n * k..][..k]);
            let expected: f64 = row.map(|(a, b)| a.to_f64() * b.to_f64()).sum();
            assert!((f64::from(c[i]) - expected).abs() < 1e-4);
        }
    }
    // Without the wait, the tile is read while the copies are still in flight.
    let fault = run("gemm_nowait", &LaunchOptions::default()).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::AsyncRegion | FaultKind::Uninitialised), "{fault}");
}

#[test]
fn every_arm_of_a_branch_table() {
    let n = 256usize;
    let mut random = Random(17);
    let op: Vec<u32> = (0..n as u32).map(|i| i % 20).collect();
    let x: Vec<f32> = random.floats(n).iter().map(|v| v * 100.0).collect();
    let z: Vec<u64> = (0..n).map(|_| u64::from(random.next()) << 32 | u64::from(random.next())).collect();
    let mut device = EmulatedDevice::new();
    let po = device.alloc_from("op", &bytes(&op, u32::to_le_bytes));
    let px = device.alloc_from("x", &bytes(&x, f32::to_le_bytes));
    let py = device.alloc_named("y", n * 4);
    let pz = device.alloc_from("z", &bytes(&z, u64::to_le_bytes));
    let args = [Arg::Ptr(po), Arg::Ptr(px), Arg::Ptr(py), Arg::Ptr(pz), Arg::U32(n as u32)];
    device.launch(module(), "misc", [1; 3], [n as u32, 1, 1], 0, &args).unwrap();
    let y = f32s(&device, py, n);
    let after = device.read(pz, n * 8).unwrap();
    for i in 0..n {
        let v = x[i];
        let expected = match op[i] {
            0 => v.abs(),
            1 => -v,
            2 => v.sqrt(),
            3 => v / 3.1,
            4 => v.floor(),
            5 => v.clamp(-1.0, 1.0),
            6 => (v as i32 / 7) as f32,
            7 => (v as i32 as u32 % 10) as f32,
            8 => (v as i8).into(),
            9 => f32::from_bits(v.to_bits().rotate_left(5)),
            10 => v.to_bits().count_ones() as f32,
            11 => v.to_bits().leading_zeros() as f32,
            12 => v.to_bits().reverse_bits() as f32,
            13 => (f64::from(v) * 1.5 + 0.25) as f32,
            15 => v.round(),
            16 => v.copysign(-2.0),
            17 => v.to_bits().swap_bytes() as f32,
            18 => v.mul_add(v, 1.0),
            _ => v,
        };
        assert!(y[i] == expected || y[i].is_nan() && expected.is_nan(), "{} of {v}: {} for {expected}", op[i], y[i]);
        let u = z[i];
        let mixed = (u / 1_000_003).wrapping_mul(u ^ 0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let expected = mixed ^ ((u128::from(u) * 0xdead_beef_cafe_f00d) >> 64) as u64;
        assert_eq!(after[i * 8..][..8], expected.to_le_bytes());
    }
}

#[test]
fn calls_with_local_memory_and_constants() {
    let n = 64usize;
    let mut random = Random(19);
    let (x, y) = (random.floats(n), random.floats(n));
    let mut device = EmulatedDevice::new();
    let px = device.alloc_from("x", &bytes(&x, f32::to_le_bytes));
    let py = device.alloc_from("y", &bytes(&y, f32::to_le_bytes));
    device.launch(module(), "calls", [1; 3], [64, 1, 1], 0, &[Arg::Ptr(px), Arg::Ptr(py), Arg::U32(n as u32)]).unwrap();
    let coefficients = [1.0f32, 2.0, 3.0, 4.0, 0.5, 0.25, 0.125, 0.0625];
    for (i, found) in f32s(&device, py, n).into_iter().enumerate() {
        let c = [4, 5, 6, 7].map(|modulus| coefficients[i % modulus]);
        let poly = |v: f32| c[3].mul_add(v, c[2]).mul_add(v, c[1]).mul_add(v, c[0]);
        assert_eq!(found, poly(x[i]) + poly(y[i]));
    }
}

#[test]
fn a_panic_names_its_thread() {
    let n = 64u32;
    let indices: Vec<u32> = (0..16).map(|i| i * 5).collect();
    let x = Random(23).floats(n as usize);
    let run = |threads: u32| {
        let mut device = EmulatedDevice::new();
        let px = device.alloc_from("x", &bytes(&x, f32::to_le_bytes));
        let py = device.alloc_named("y", n as usize * 4);
        let pi = device.alloc_from("indices", &bytes(&indices, u32::to_le_bytes));
        let args = [Arg::Ptr(px), Arg::Ptr(py), Arg::U32(n), Arg::Ptr(pi)];
        device.launch(module(), "checked", [1; 3], [threads, 1, 1], 0, &args).map(|_| f32s(&device, py, n as usize))
    };
    let y = run(64).unwrap();
    for (i, found) in y.into_iter().enumerate() {
        let mut top = [f32::NEG_INFINITY; 8];
        for k in 0..16 {
            let slot = &mut top[indices[k] as usize % 8];
            *slot = slot.max(x[(i + k) % 64]);
        }
        assert_eq!(found, (0..8).fold(0.0, |sum, k| sum + top[indices[k] as usize % 8]));
    }
    let fault = run(96).unwrap_err();
    assert_eq!((fault.kind, fault.thread), (FaultKind::Trap, Some([64, 0, 0])));
}

#[test]
fn dequantised_blocks() {
    let blocks = 32usize;
    let mut random = Random(29);
    let mut data = Vec::new();
    for _ in 0..blocks {
        data.extend(f16::from_f32(random.float()).to_le_bytes());
        data.extend((0..16).map(|_| random.next() as u8));
    }
    let mut device = EmulatedDevice::new();
    let (px, po) = (device.alloc_from("x", &data), device.alloc_named("out", blocks * 64));
    let args = [Arg::Ptr(px), Arg::Ptr(po), Arg::U32(blocks as u32)];
    device.launch(module(), "dequant_q4", [blocks as u32 / 8, 1, 1], [128, 1, 1], 0, &args).unwrap();
    let out = u16s(&device, po, blocks * 32);
    for (block, out) in data.chunks(18).zip(out.chunks(32)) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for k in 0..16 {
            let of = |nibble: u8| f16::from_f32((i32::from(nibble) - 8) as f32 * scale).to_bits();
            assert_eq!((out[k], out[16 + k]), (of(block[2 + k] & 15), of(block[2 + k] >> 4)));
        }
    }
}

#[test]
fn reductions_right_and_broken_by_the_compiler() {
    let n = 512;
    let mut random = Random(31);
    let x: Vec<f16> = random.floats(n).into_iter().map(f16::from_f32).collect();
    let run = |kernel: &str| {
        let mut device = EmulatedDevice::new();
        let px = device.alloc_from("x", &bytes(&x, f16::to_le_bytes));
        let po = device.alloc_named("out", 4);
        let args = [Arg::Ptr(px), Arg::Ptr(px), Arg::Ptr(po), Arg::U32(n as u32)];
        device.launch(module(), kernel, [1; 3], [32, 1, 1], 0, &args).map(|_| f32s(&device, po, 1)[0])
    };
    let expected: f64 = x.iter().map(|v| v.to_f64().powi(2)).sum();
    assert!((f64::from(run("dot_intr").unwrap()) - expected).abs() < 1e-3);
    let fault = run("dot_pure").unwrap_err();
    assert_eq!(fault.kind, FaultKind::MissingLanes);
    assert!(fault.message.contains("names lanes 0xffffffff, but only lanes 0x00000001"), "{fault}");
}

#[test]
fn collectives_copied_into_arms() {
    let mut device = EmulatedDevice::new();
    let x = Random(37).floats(1000);
    let (px, po) = (device.alloc_from("x", &bytes(&x, f32::to_le_bytes)), device.alloc_named("out", 40_000));
    let args = [Arg::Ptr(px), Arg::Ptr(po), Arg::U32(16)];
    let fault = device.launch(module(), "dup_intr2", [1; 3], [32, 1, 1], 0, &args).unwrap_err();
    assert_eq!(fault.kind, FaultKind::MissingLanes);
    let args = [Arg::Ptr(px), Arg::Ptr(po), Arg::U32(1000)];
    let fault = device.launch(module(), "memcpy_sync", [2, 1, 1], [512, 1, 1], 0, &args).unwrap_err();
    assert_eq!((fault.kind, fault.block), (FaultKind::DivergentBarrier, [1, 0, 0]));
    assert!(fault.message.contains("0x000000ff"), "{fault}");
}

#[test]
fn a_write_after_a_read_without_a_barrier() {
    let x = [1f32; 64];
    for options in orders() {
        let mut device = EmulatedDevice::new();
        let (px, po) = (device.alloc_from("x", &bytes(&x, f32::to_le_bytes)), device.alloc_named("out", 256));
        let args = [Arg::Ptr(px), Arg::Ptr(po)];
        let fault = device.launch_with(&options, module(), "race_war", [1; 3], [64, 1, 1], 256, &args).unwrap_err();
        assert_eq!(fault.kind, FaultKind::SharedRace, "{fault}");
    }
}
