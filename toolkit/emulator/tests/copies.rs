//! `cp.async` with mbarriers that wait for it, in correct code and with a part missing. Also tensor copies issued by a
//! whole warp.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule, Swizzle, TensorMap};

/// Two warps copy one word per lane, signal an mbarrier with `arrive`, wait, and read the words that the other warp
/// copied.
fn exchange(seed: u64, count: u32, arrive: &str, wait: &str) -> Result<Vec<u32>, Box<Fault>> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64
         .visible .entry k(.param .u64 in, .param .u64 out) {{
         .reg .b32 %r<20>; .reg .b64 %d<8>; .reg .pred %p<4>; .shared .align 8 .b8 tile[256]; .shared .b64 full;
         ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x;
         setp.ne.u32 %p1, %r1, 0; @%p1 bra set;
         mbarrier.init.shared.b64 [full], {count};
         set: bar.sync 0;
         mad.wide.u32 %d1, %r1, 4, %d1; mad.wide.u32 %d2, %r1, 4, %d2; mov.u32 %r2, tile;
         mad.lo.u32 %r3, %r1, 4, %r2; xor.b32 %r4, %r1, 32; mad.lo.u32 %r4, %r4, 4, %r2;
         cp.async.ca.shared.global [%r3], [%d1], 4;
         {arrive}
         {wait}
         ld.shared.u32 %r5, [%r4]; st.global.u32 [%d2], %r5; bar.sync 0; ret; }}"
    );
    let module = PtxModule::parse(&text).unwrap();
    let mut device = EmulatedDevice::new();
    let input: Vec<u8> = (0..64u32).flat_map(|i| (i * 3).to_le_bytes()).collect();
    let (from, to) = (device.alloc_from("in", &input), device.alloc(256));
    let options = LaunchOptions { seed, ..LaunchOptions::default() };
    device.launch_with(&options, &module, "k", [1; 3], [64, 1, 1], 0, &[Arg::Ptr(from), Arg::Ptr(to)])?;
    let bytes = device.read(to, 256).unwrap();
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

const WAIT: &str = "spin: mbarrier.test_wait.parity.shared.b64 %p2, [full], 0; @!%p2 bra spin;";
const COUNTED: &str = "cp.async.mbarrier.arrive.noinc.shared.b64 [full];";
const UNCOUNTED: &str = "cp.async.mbarrier.arrive.shared.b64 [full]; mbarrier.arrive.shared.b64 %d3, [full];";

#[test]
fn an_mbarrier_waits_for_the_copies_of_all_threads() {
    let expected: Vec<u32> = (0..64).map(|thread: u32| (thread ^ 32) * 3).collect();
    for seed in 0..6 {
        // The mbarrier counts either the arrivals of the copies, or the threads' own arrivals while the copies add
        // pending ones.
        assert_eq!(exchange(seed, 64, COUNTED, WAIT).unwrap(), expected, "seed {seed}");
        assert_eq!(exchange(seed, 64, UNCOUNTED, WAIT).unwrap(), expected, "seed {seed}");
        // Waiting for the copy group as well is harmless.
        let both = format!("cp.async.commit_group; {COUNTED}");
        assert_eq!(exchange(seed, 64, &both, &format!("cp.async.wait_group 0; {WAIT}")).unwrap(), expected);
    }
}

#[test]
fn reading_a_copy_in_flight_is_a_fault() {
    for seed in 0..4 {
        let fault = exchange(seed, 64, COUNTED, "bar.sync 0;").unwrap_err();
        assert_eq!(fault.kind, FaultKind::AsyncRegion, "{fault}");
        // The threads arrive without waiting for their copies.
        let fault = exchange(seed, 64, "mbarrier.arrive.shared.b64 %d3, [full];", WAIT).unwrap_err();
        assert_eq!(fault.kind, FaultKind::AsyncRegion, "{fault}");
        // A thread's wait for its own copy group does not cover the other warp's copies.
        let group = "cp.async.commit_group; cp.async.wait_group 0;";
        assert!(exchange(seed, 64, group, "").is_err(), "seed {seed}");
    }
}

#[test]
fn wrong_counts_of_copies_are_faults() {
    let fault = exchange(0, 65, COUNTED, WAIT).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Deadlock, "{fault}");
    let fault = exchange(0, 64, "cp.async.mbarrier.arrive.shared.b64 [tile];", WAIT).unwrap_err();
    assert!(fault.message.contains("no mbarrier at offset"), "{fault}");
}

#[test]
fn a_tile_that_all_lanes_store_is_one_copy() {
    let module = PtxModule::parse(
        ".version 8.0\n.target sm_90a\n.address_size 64
         .visible .entry k(.param .u64 map) {
         .reg .b64 %d<4>; .reg .b32 %r<4>; .shared .align 128 .b8 tile[128];
         ld.param.u64 %d1, [map]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; shl.b32 %r3, %r1, 2; add.u32 %r3, %r2, %r3;
         st.shared.u32 [%r3], %r1; fence.proxy.async.shared::cta; bar.warp.sync -1; mov.u32 %r0, 0;
         cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%d1, {%r0}], [%r2];
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }",
    )
    .unwrap();
    let mut device = EmulatedDevice::new();
    let out = device.alloc(128);
    let map = TensorMap {
        base: out,
        element_bytes: 4,
        dimensions: vec![32],
        strides: vec![],
        tile: vec![32],
        swizzle: Swizzle::None,
    };
    let map = device.alloc_from("map", &map.encode().unwrap());
    let report = device.launch(&module, "k", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(map)]).unwrap();
    let expected: Vec<u8> = (0..32u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(device.read(out, 128).unwrap(), expected);
    assert_eq!(report.total.sectors, 4, "{:?}", report.total);
}
