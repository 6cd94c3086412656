//! Hopper's asynchronous features: mbarriers, bulk and tensor copies, and warp group products. Each is tested in
//! correct code and with a part missing.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod products;

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule, Swizzle, TensorMap};

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
