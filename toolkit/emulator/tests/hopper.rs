//! Hopper's asynchronous features: mbarriers, bulk and tensor copies, and warp group products. Each is tested in
//! correct code and with a part missing.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule, Swizzle, TensorMap};
use half::{bf16, f16};

/// A kernel with two pointer parameters and 32 KiB of shared memory. `%r1` is the thread, and `%p1` is true for all
/// threads but the first.
fn module(body: &str) -> PtxModule {
    PtxModule::parse(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry hopper(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .b32 %r<20>;\n.reg .b64 %rd<20>;\n.reg .pred %p<8>;\n.reg .f32 %f<128>;\n\
         .shared .align 1024 .b8 tile[32768];\n.shared .align 8 .b64 full[2];\n\
         ld.param.u64 %rd1, [in];\nld.param.u64 %rd2, [out];\nmov.u32 %r1, %tid.x;\nsetp.ne.u32 %p1, %r1, 0;\n\
         mov.u32 %r2, tile;\nmov.u32 %r3, full;\n{body}\nret;\n}}\n"
    ))
    .unwrap()
}

struct Run {
    seed: u64,
    threads: u32,
    input: Vec<u8>,
    output: usize,
}

impl Run {
    fn launch(&self, body: &str) -> Result<Vec<u8>, Box<Fault>> {
        let mut device = EmulatedDevice::new();
        let input = device.alloc_from("in", &self.input);
        let output = device.alloc_from("out", &vec![0; self.output]);
        let options = LaunchOptions { seed: self.seed, ..LaunchOptions::default() };
        let args = [Arg::Ptr(input), Arg::Ptr(output)];
        device.launch_with(&options, &module(body), "hopper", [1; 3], [self.threads, 1, 1], 0, &args)?;
        Ok(device.read(output, self.output).unwrap())
    }
}

/// Runs 64 threads on an input of 1024 bytes.
fn run(seed: u64, body: &str) -> Result<Vec<u8>, Box<Fault>> {
    let input = (0..1024).map(|i| (i * 7 + i / 256) as u8).collect();
    Run { seed, threads: 64, input, output: 1024 }.launch(body)
}

/// Asserts that several orders are faults, and that the natural order is the given fault.
#[track_caller]
fn caught(body: &str, kind: FaultKind, message: &str) {
    let fault = run(0, body).unwrap_err();
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.message.contains(message), "{fault}");
    for seed in 1..4 {
        assert!(run(seed, body).is_err(), "seed {seed}");
    }
}

/// The first thread fills the tile with a bulk copy that signals an mbarrier. All threads wait, and each copies one
/// word.
const FILL: &str = "@%p1 bra $ready;\nmbarrier.init.shared::cta.b64 [%r3], 1;\n$ready:\nINIT\n@%p1 bra $wait;\n\
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], EXPECT;\n\
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 1024, [%r3];\n$wait:\nWAIT\n\
    shl.b32 %r4, %r1, 2;\nadd.u32 %r5, %r2, %r4;\nld.shared.u32 %r6, [%r5];\ncvt.u64.u32 %rd3, %r4;\n\
    add.u64 %rd3, %rd2, %rd3;\nst.global.u32 [%rd3], %r6;\nbar.sync 0;\n";
const WAIT: &str = "$spin:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra $spin;\n";

fn fill(init: &str, expect: &str, wait: &str) -> String {
    FILL.replace("INIT", init).replace("EXPECT", expect).replace("WAIT", wait)
}

#[test]
fn a_bulk_copy_and_its_mbarrier() {
    for seed in 0..6 {
        let out = run(seed, &fill("bar.sync 0;", "1024", WAIT)).unwrap();
        assert!((0..256).all(|i| out[i] == (i * 7) as u8), "seed {seed}");
    }
    caught(
        &fill("bar.sync 0;", "1024", ""),
        FaultKind::AsyncRegion,
        "the asynchronous copy of thread 0 still writes it",
    );
    let fault = run(0, &fill("", "1024", WAIT)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::SharedRace | FaultKind::Mbarrier), "{fault}");
}

#[test]
fn wrong_mbarrier_phases_are_faults() {
    caught(
        &fill("bar.sync 0;", "2048", WAIT),
        FaultKind::Deadlock,
        "the mbarrier at offset 0x8000 is in phase 0 with 0 of 1 arrivals and 1024 bytes missing",
    );
    let two = fill("bar.sync 0;", "1024", WAIT).replace("[%r3], 1;", "[%r3], 2;");
    caught(&two, FaultKind::Deadlock, "is in phase 0 with 1 of 2 arrivals and 1024 bytes missing");
    let wrong_parity = fill("bar.sync 0;", "1024", &WAIT.replace("[%r3], 0", "[%r3], 1"));
    // The phase before the first counts as complete, so this wait does not wait for the copy.
    caught(&wrong_parity, FaultKind::AsyncRegion, "a wait is missing");
    let twice = format!("{WAIT}{}", WAIT.replace("[%r3], 0", "[%r3], 1").replace("$spin", "$again"));
    caught(&fill("bar.sync 0;", "1024", &twice), FaultKind::Deadlock, "is in phase 1 with 1 of 1 arrivals");
}

#[test]
fn arrivals_order_memory() {
    // The first warp's threads store and arrive. The second warp's threads wait, by parity or by state, and read.
    let body = "@%p1 bra $ready;\nmbarrier.init.shared.b64 [%r3], 32;\n$ready:\nbar.sync 0;\nshl.b32 %r4, %r1, 2;\n\
                and.b32 %r5, %r4, 124;\nadd.u32 %r5, %r2, %r5;\nsetp.ge.u32 %p3, %r1, 32;\n@%p3 bra $consume;\n\
                st.shared.u32 [%r5], %r1;\nmbarrier.arrive.shared.b64 %rd5, [%r3];\n$own:\n\
                mbarrier.test_wait.shared.b64 %p2, [%r3], %rd5;\n@!%p2 bra $own;\nret;\n$consume:\n\
                WAIT\nld.shared.u32 %r6, [%r5];\ncvt.u64.u32 %rd3, %r4;\nadd.u64 %rd3, %rd2, %rd3;\nst.global.u32 [%rd3], %r6;\n";
    for seed in 0..6 {
        let out = run(seed, &body.replace("WAIT", WAIT)).unwrap();
        assert!((0..32).all(|i| out[128 + 4 * i] == i as u8));
        let fault = run(seed, &body.replace("WAIT", "")).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::SharedRace | FaultKind::Uninitialised), "{fault}");
    }
    // If the mbarrier expects too few arrivals, the phase ends before the last thread has arrived.
    let few = body.replace("WAIT", WAIT).replace("b64 [%r3], 32", "b64 [%r3], 31");
    caught(&few, FaultKind::SharedRace, "that thread 31 wrote, with no barrier between");
    let many = "@%p1 ret;\nmbarrier.init.shared.b64 [%r3], 1;\nmbarrier.arrive.shared.b64 _, [%r3], 2;\n";
    caught(many, FaultKind::Mbarrier, "2 arrivals are too many");
    caught("mbarrier.arrive.shared.b64 _, [%r3];\n", FaultKind::Mbarrier, "it was not initialised");
    let overwritten = "@%p1 ret;\nmbarrier.init.shared.b64 [%r3], 1;\nst.shared.u32 [%r3+4], 0;\n";
    caught(overwritten, FaultKind::Mbarrier, "where an mbarrier lives");
    let reused =
        "@%p1 ret;\nmbarrier.init.shared.b64 [%r3], 1;\nmbarrier.inval.shared.b64 [%r3];\nst.shared.u32 [%r3+4], 0;\n";
    run(0, reused).unwrap();
}

/// All threads store a word of the tile, and one thread copies the tile to global memory.
const STORE: &str = "shl.b32 %r4, %r1, 2;\nadd.u32 %r5, %r2, %r4;\nst.shared.u32 [%r5], %r1;\nFENCE\nbar.sync 0;\n\
    @%p1 bra $rest;\ncp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 256;\n\
    cp.async.bulk.commit_group;\nWAIT\n$rest:\nAFTER\n";

fn store(fence: &str, wait: &str, after: &str) -> String {
    STORE.replace("FENCE", fence).replace("WAIT", wait).replace("AFTER", after)
}

#[test]
fn bulk_copies_to_global_memory() {
    let (fence, wait) = ("fence.proxy.async.shared::cta;", "cp.async.bulk.wait_group.read 0;");
    let overwrite = "bar.sync 0;\nst.shared.u32 [%r5], 0;";
    for seed in 0..4 {
        let out = run(seed, &store(fence, wait, overwrite)).unwrap();
        assert!((0..64).all(|i| out[4 * i] == i as u8));
    }
    caught(&store("", wait, ""), FaultKind::MissingProxyFence, "with no `fence.proxy.async` between");
    caught(&store(fence, "", overwrite), FaultKind::AsyncRegion, "still reads it: a wait is missing");
    caught(&store(fence, "", ""), FaultKind::AsyncRegion, "the block ends while");
    // A fence before the stores, or a fence by only one thread, does not help.
    let early = store("", wait, "").replace("st.shared", "fence.proxy.async;\nst.shared");
    caught(&early, FaultKind::MissingProxyFence, "which thread");
    // The copying thread may execute the fence for all threads if a barrier comes first.
    let late = store("", wait, "").replace("cp.async.bulk.global", "fence.proxy.async;\ncp.async.bulk.global");
    run(0, &late).unwrap();
}

#[test]
fn the_source_of_a_copy_in_flight_is_not_written() {
    let write = format!("bar.sync 0;\n@%p1 bra $w;\nst.global.u32 [%rd1], 77;\n$w:\nbar.sync 0;\n{WAIT}");
    caught(&fill("bar.sync 0;", "1024", &write), FaultKind::AsyncRegion, "was written while the copy was in flight");
}

#[test]
fn one_thread_per_warp_is_elected() {
    let body = "elect.sync %r4|%p3, -1;\nmov.u32 %r5, 0;\n@%p3 mov.u32 %r5, 1;\nshl.b32 %r6, %r1, 2;\ncvt.u64.u32 %rd3, %r6;\n\
                add.u64 %rd3, %rd2, %rd3;\nst.global.u32 [%rd3], %r5;\nsetmaxnreg.dec.sync.aligned.u32 24;\n\
                griddepcontrol.wait;\n";
    let out = run(0, body).unwrap();
    assert_eq!(out.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 2);
    assert_eq!((out[0], out[128]), (1, 1));
}

/// Copies a tile of a tensor into shared memory and from there into another tensor.
fn copy_tile(maps: [TensorMap; 2], corners: [&[i32]; 2], input: Vec<u8>, output: usize) -> Vec<u8> {
    let rank = maps[0].tile.len();
    let bytes = maps[0].tile.iter().product::<u32>() as usize * maps[0].element_bytes;
    let list = |corner: &[i32]| corner.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let body = format!(
        "@%p1 ret;\nmbarrier.init.shared::cta.b64 [%r3], 1;\nfence.mbarrier_init.release.cluster;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {bytes};\n\
         cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd1, {{{}}}], [%r3];\n\
         {WAIT}cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%rd1+128, {{{}}}], [%r2];\n\
         cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n",
        list(corners[0]),
        list(corners[1])
    );
    let mut device = EmulatedDevice::new();
    let (from, to) = (device.alloc_from("from", &input), device.alloc_from("to", &vec![0xee; output]));
    let encoded: Vec<u8> =
        maps.into_iter().zip([from, to]).flat_map(|(map, base)| TensorMap { base, ..map }.encode().unwrap()).collect();
    let maps = device.alloc_from("maps", &encoded);
    device
        .launch(&module(&body), "hopper", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(maps), Arg::Ptr(to)])
        .unwrap_or_else(|fault| panic!("{fault}"));
    device.read(to, output).unwrap()
}

#[test]
fn tiles_of_tensors() {
    let map = |dimensions: &[u64], strides: &[u64], tile: &[u32], swizzle| TensorMap {
        base: 0,
        element_bytes: 2,
        dimensions: dimensions.to_vec(),
        strides: strides.to_vec(),
        tile: tile.to_vec(),
        swizzle,
    };
    let number = |bytes: &[u8], index: usize| u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
    let input: Vec<u8> = (0..40u16 * 24 * 3).flat_map(|i| (i + 1).to_le_bytes()).collect();
    // A tile copied in and back out is unchanged, whatever the swizzle. Elements out of bounds read as zero.
    for swizzle in [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128] {
        let from = map(&[40, 24, 3], &[80, 80 * 24], &[16, 8, 2], swizzle);
        let to = map(&[16, 8, 2], &[32, 32 * 8], &[16, 8, 2], swizzle);
        for corner in [[0, 0, 0], [30, 20, 2], [-3, -2, 1], [7, 5, -1]] {
            let out = copy_tile([from.clone(), to.clone()], [&corner, &[0, 0, 0]], input.clone(), 512);
            for index in 0..256usize {
                let at = [index % 16, index / 16 % 8, index / 128].map(|i| i as i32);
                let at = [at[0] + corner[0], at[1] + corner[1], at[2] + corner[2]];
                let inside = at.iter().zip([40, 24, 3]).all(|(&at, size)| (0..size).contains(&at));
                let expected = if inside { (at[0] + 40 * at[1] + 960 * at[2] + 1) as u16 } else { 0 };
                assert_eq!(number(&out, index), expected, "{swizzle:?} {corner:?} {at:?}");
            }
        }
        // Elements out of bounds are not written.
        let out = copy_tile([to.clone(), to.clone()], [&[0, 0, 0], &[8, 4, 1]], input[..512].to_vec(), 512);
        assert_eq!(number(&out, 128 + 4 * 16 + 8), 1);
        assert_eq!(out.chunks_exact(2).filter(|pair| *pair != [0xee, 0xee]).count(), 8 * 4);
    }
    let line = map(&[1000], &[], &[256], Swizzle::None);
    let out = copy_tile([line.clone(), line], [&[900], &[0]], input, 2000);
    assert_eq!((number(&out, 99), number(&out, 100)), (1000, 0));
}

/// The layout of a factor in shared memory, in rows of eight 16-bit elements.
struct Layout {
    swizzle: u64,
    transposed: bool,
    leading: usize,
    stride: usize,
}

impl Layout {
    /// The matrix descriptor of a factor at an offset of shared memory.
    fn descriptor(&self, at: usize) -> u64 {
        let field = |value: usize| (value as u64 >> 4) & 0x3fff;
        field(at) | field(self.leading) << 16 | field(self.stride) << 32 | self.swizzle << 62
    }

    /// The byte offset of an element, by the canonical layouts of the PTX ISA.
    fn offset(&self, row: usize, k: usize) -> usize {
        let width = [1, 8, 4, 2][self.swizzle as usize];
        let at = match (self.swizzle, self.transposed) {
            (0, false) => row % 8 * 16 + row / 8 * self.stride + k % 8 * 2 + k / 8 * self.leading,
            (0, true) => row % 8 * 2 + row / 8 * self.stride + k % 8 * 16 + k / 8 * self.leading,
            (_, false) => row % 8 * width * 16 + row / 8 * self.stride + k * 2,
            (_, true) => {
                let across = row / 8;
                row % 8 * 2
                    + across % width * 16
                    + across / width * self.leading
                    + k % 8 * width * 16
                    + k / 8 * self.stride
            }
        };
        at ^ (at >> 7 & (width - 1)) << 4
    }
}

/// Computes a product of 64 rows and `columns` columns: `d = a b`, then the code `between`, and for 32-bit sums also `d
/// = -a b + d` and `d = a b + d`. In every case the result must be the exact `a b`. `parts` are the fence, the proxy
/// fence, the wait and `between`.
fn product(
    types: &str,
    a: Option<&Layout>,
    b: &Layout,
    columns: usize,
    parts: [&str; 4],
) -> Result<Vec<u32>, Box<Fault>> {
    let bf = types.ends_with("bf16");
    let bits =
        |value: i32| if bf { bf16::from_f32(value as f32).to_bits() } else { f16::from_f32(value as f32).to_bits() };
    let (of_a, of_b) = (
        |row: usize, k: usize| (row * 3 + k * 5) as i32 % 11 - 5,
        |column: usize, k: usize| (column * 7 + k) as i32 % 9 - 4,
    );
    let mut memory = vec![0u8; 32768];
    let start = 8192;
    for k in 0..16 {
        for row in 0..64 {
            if let Some(a) = a {
                memory[a.offset(row, k)..][..2].copy_from_slice(&bits(of_a(row, k)).to_le_bytes());
            }
        }
        for column in 0..columns {
            memory[start + b.offset(column, k)..][..2].copy_from_slice(&bits(of_b(column, k)).to_le_bytes());
        }
    }
    // Four words per thread follow, for a first factor in registers.
    let pair = |row, k| u32::from(bits(of_a(row, k))) | u32::from(bits(of_a(row, k + 1))) << 16;
    for thread in 0..128 {
        let (row, k) = (thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
        for word in [pair(row, k), pair(row + 8, k), pair(row, k + 8), pair(row + 8, k + 8)] {
            memory.extend(word.to_le_bytes());
        }
    }
    let half = types.starts_with("f16");
    let count = if half { columns / 4 } else { columns / 2 };
    let registers = |name: &str| (0..count).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ");
    let d = registers("%d");
    let (first, flags) = match a {
        Some(a) => (format!("{}", a.descriptor(0)), format!("{}, {}", u8::from(a.transposed), u8::from(b.transposed))),
        None => ("{%r10, %r11, %r12, %r13}".into(), format!("{}", u8::from(b.transposed))),
    };
    let wgmma = |scale: &str, sign: i32| {
        format!(
            "wgmma.mma_async.sync.aligned.m64n{columns}k16.{types} {{{d}}}, {first}, {}, {scale}, {sign}, 1, {flags};\n",
            b.descriptor(start)
        )
    };
    let [fence, proxy, wait, between] = parts;
    let mut body = format!(
        ".reg .b32 %d<128>;\nshl.b32 %r4, %r1, 4;\nmov.u32 %r5, 0;\n$fill:\nadd.u32 %r6, %r4, %r5;\ncvt.u64.u32 %rd3, %r6;\n\
         add.u64 %rd3, %rd1, %rd3;\nld.global.v2.u64 {{%rd4, %rd5}}, [%rd3];\nadd.u32 %r6, %r6, %r2;\n\
         st.shared.v2.u64 [%r6], {{%rd4, %rd5}};\nadd.u32 %r5, %r5, 2048;\nsetp.lt.u32 %p2, %r5, 32768;\n@%p2 bra $fill;\n\
         add.u64 %rd3, %rd3, 2048;\nld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd3];\n{proxy}\nbar.sync 0;\n\
         setp.ne.u32 %p3, 0, 0;\n{fence}\n{}{}wgmma.commit_group.sync.aligned;\n{wait}\nmul.lo.u32 %r6, %r1, {};\ncvt.u64.u32 %rd3, %r6;\n\
         add.u64 %rd3, %rd2, %rd3;\n",
        wgmma(if columns == 136 { "0" } else { "%p3" }, 1),
        if half { String::new() } else { between.to_string() + &wgmma("1", -1) + &wgmma("!%p3", 1) },
        4 * count
    );
    (0..count).for_each(|i| body += &format!("st.global.u32 [%rd3+{}], %d{i};\n", 4 * i));
    let out = Run { seed: 0, threads: 128, input: memory, output: 128 * 4 * count }.launch(&body)?;
    let words: Vec<u32> = out.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    for row in 0..64 {
        for column in 0..columns {
            let expected: i32 = (0..16).map(|k| of_a(row, k) * of_b(column, k)).sum();
            let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            let index = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
            let found = if half {
                f16::from_bits((words[thread * count + index / 2] >> (16 * (index % 2))) as u16).to_f32()
            } else {
                f32::from_bits(words[thread * count + index])
            };
            assert_eq!(found, expected as f32, "{types} row {row} column {column}");
        }
    }
    Ok(words)
}

const PARTS: [&str; 4] = ["wgmma.fence.sync.aligned;", "fence.proxy.async;", "wgmma.wait_group.sync.aligned 0;", ""];

#[test]
fn products_of_a_warp_group() {
    for swizzle in 0..4 {
        for transposed in [false, true] {
            let span = [16, 128, 64, 32][swizzle as usize];
            // Core matrices of 128 bytes, or groups of eight rows of the swizzle's span. Any layout without overlap
            // would do.
            let layout = |rows: usize| match (swizzle, transposed) {
                (0, _) => Layout { swizzle, transposed, leading: 128 * rows / 8, stride: 128 },
                (_, false) => Layout { swizzle, transposed, leading: 16, stride: 8 * span },
                (_, true) => Layout { swizzle, transposed, leading: 16 * span, stride: 8 * span },
            };
            for columns in [8, 64, 136] {
                product("f32.f16.f16", Some(&layout(64)), &layout(columns), columns, PARTS).unwrap();
                product("f32.bf16.bf16", None, &layout(columns), columns, PARTS).unwrap();
            }
            product("f16.f16.f16", Some(&layout(64)), &layout(32), 32, PARTS).unwrap();
        }
    }
}

#[test]
fn products_with_parts_missing() {
    let layout = || Layout { swizzle: 1, transposed: false, leading: 16, stride: 1024 };
    let without = |part: usize| {
        let parts = std::array::from_fn(|i| if i == part { "" } else { PARTS[i] });
        product("f32.f16.f16", Some(&layout()), &layout(), 64, parts).unwrap_err()
    };
    let (fence, proxy, wait) = (without(0), without(1), without(2));
    assert!(fence.message.contains("with no `wgmma.fence` before it"), "{fence}");
    assert_eq!(proxy.kind, FaultKind::MissingProxyFence, "{proxy}");
    assert!(wait.message.contains("the block ends while an asynchronous copy or product"), "{wait}");
}

#[test]
fn changing_sums_needs_another_fence() {
    let layout = || Layout { swizzle: 1, transposed: false, leading: 16, stride: 1024 };
    let with = |between: &str| {
        let between = format!("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n{between}\n");
        product("f32.f16.f16", Some(&layout()), &layout(), 64, [PARTS[0], PARTS[1], PARTS[2], &between])
    };
    with("").unwrap();
    with("mov.b32 %d3, %d3;\nwgmma.fence.sync.aligned;").unwrap();
    with("mov.b32 %r19, %d3;").unwrap();
    for touch in ["mov.b32 %d3, %d3;", "add.f32 %d0, %d0, 0f00000000;"] {
        let fault = with(touch).unwrap_err();
        assert!(fault.message.contains("with no `wgmma.fence` before it"), "{fault}");
    }
    // A first factor in registers needs the fence too.
    let between = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nmov.b32 %r11, %r11;\n";
    assert!(product("f32.f16.f16", None, &layout(), 64, [PARTS[0], PARTS[1], PARTS[2], between]).is_err());
}
