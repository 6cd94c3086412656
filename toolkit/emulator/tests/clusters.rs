//! Clusters of blocks: the cluster barrier, access to another block's shared memory, remote arrivals and multicasts.
//! Each is tested in correct code and with a part missing.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[allow(dead_code, reason = "these tests need one device only")]
mod host;

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};

/// A kernel with two pointer parameters. `%r1` is the thread, `%r2` the rank of its block and `%r3` the neighbour
/// block's rank. `%p1` is true for all threads but the first, and `%d2` is the address of the thread's result.
fn module(bounds: &str, body: &str) -> PtxModule {
    PtxModule::parse(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
         .visible .entry k(.param .u64 in, .param .u64 out) {bounds} {{
         .reg .b32 %r<30>; .reg .b64 %d<20>; .reg .pred %p<8>; .reg .b16 %h<4>;
         .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 full;
         ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank;
         xor.b32 %r3, %r2, 1; mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ntid.x; mad.lo.u32 %r6, %r4, %r5, %r1;
         mad.wide.u32 %d2, %r6, 4, %d2; setp.ne.u32 %p1, %r1, 0; mov.u32 %r7, tile; mov.u32 %r8, full;
         shl.b32 %r9, %r1, 2; add.u32 %r9, %r9, %r7;
         {body}
         ret; }}"
    ))
    .unwrap()
}

const PAIR: &str = ".reqnctapercluster 2";

fn launch(seed: u64, module: &PtxModule, blocks: u32, threads: u32) -> Result<Vec<u32>, Box<Fault>> {
    let mut device = EmulatedDevice::new();
    let input: Vec<u8> = (0..256u32).flat_map(|i| (i * 5).to_le_bytes()).collect();
    let words = (blocks * threads) as usize;
    let (from, to) = (device.alloc_from("in", &input), device.alloc_from("out", &vec![0; words * 4]));
    let options = LaunchOptions { seed, instruction_limit: 1 << 22, ..LaunchOptions::default() };
    device.launch_with(&options, module, "k", [blocks, 1, 1], [threads, 1, 1], 0, &[Arg::Ptr(from), Arg::Ptr(to)])?;
    let bytes = device.read(to, words * 4).unwrap();
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Runs four blocks of 64 threads in clusters of two.
fn run(seed: u64, body: &str) -> Result<Vec<u32>, Box<Fault>> {
    launch(seed, &module(PAIR, body), 4, 64)
}

/// Asserts that every order is a fault, and that the natural order is the given fault.
#[track_caller]
fn caught(body: &str, kind: FaultKind, message: &str) {
    let fault = run(0, body).unwrap_err();
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.message.contains(message), "{fault}");
    for seed in 1..6 {
        assert!(run(seed, body).is_err(), "seed {seed}");
    }
}

const MEET: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
/// Each thread stores a number that identifies it.
const LEAVE: &str = "mad.lo.u32 %r10, %r4, 1000, %r1; st.shared.u32 [%r9], %r10;";
const READ: &str =
    "mapa.shared::cluster.u32 %r11, %r9, %r3; ld.shared::cluster.u32 %r12, [%r11]; st.global.u32 [%d2], %r12;";

/// The numbers stored by the matching threads of the neighbour block.
fn neighbour_values() -> Vec<u32> {
    (0..256).map(|i: u32| ((i / 64) ^ 1) * 1000 + i % 64).collect()
}

#[test]
fn blocks_read_each_others_shared_memory() {
    let generic = "cvt.u64.u32 %d4, %r9; cvta.shared.u64 %d4, %d4; mapa.u64 %d5, %d4, %r3; ld.u32 %r12, [%d5];
        isspacep.shared::cluster %p2, %d5; isspacep.shared::cta %p3, %d5; not.pred %p3, %p3; and.pred %p2, %p2, %p3;
        getctarank.u64 %r13, %d5; setp.eq.u32 %p3, %r13, %r3; and.pred %p2, %p2, %p3;
        getctarank.shared::cluster.u32 %r13, %r9; setp.eq.u32 %p3, %r13, %r2; and.pred %p2, %p2, %p3;
        @%p2 st.global.u32 [%d2], %r12;";
    let split = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;";
    for seed in 0..6 {
        for (meet, read) in [(MEET, READ), (split, READ), (MEET, generic)] {
            let body = format!("{LEAVE} {meet} {read} {meet}");
            assert_eq!(run(seed, &body).unwrap(), neighbour_values(), "seed {seed}: {read}");
        }
    }
}

#[test]
fn blocks_write_and_count_in_each_others_shared_memory() {
    let write = format!(
        "mad.lo.u32 %r10, %r4, 1000, %r1; mapa.shared::cluster.u32 %r11, %r9, %r3;
         st.shared::cluster.u32 [%r11], %r10; {MEET} ld.shared.u32 %r12, [%r9]; st.global.u32 [%d2], %r12; {MEET}"
    );
    let count = format!(
        "@%p1 bra start; mov.u32 %r10, 0; st.shared.u32 [%r7], %r10; start: {MEET}
         mapa.shared::cluster.u32 %r11, %r7, 1; atom.shared::cluster.add.u32 %r12, [%r11], 1;
         red.relaxed.cluster.shared::cluster.add.u32 [%r11], 1; {MEET}
         ld.shared::cluster.u32 %r12, [%r11]; st.global.u32 [%d2], %r12; {MEET}"
    );
    for seed in 0..6 {
        assert_eq!(run(seed, &write).unwrap(), neighbour_values(), "seed {seed}");
        assert_eq!(run(seed, &count).unwrap(), [256; 256], "seed {seed}");
    }
}

#[test]
fn missing_barriers_of_the_cluster_are_races() {
    caught(
        &format!("{LEAVE} bar.sync 0; {READ} {MEET}"),
        FaultKind::SharedRace,
        "that thread 0 of block 1 of the cluster wrote",
    );
    // A relaxed arrival does not order memory.
    let relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;";
    caught(&format!("{LEAVE} {relaxed} {READ} {MEET}"), FaultKind::SharedRace, "with no barrier between");
    // Without a second barrier, the neighbour may exit before its shared memory is read.
    let fault = run(0, &format!("{LEAVE} {MEET} {READ}")).unwrap_err();
    assert!(
        fault.message.contains("may still access its shared memory") || fault.message.contains("exited"),
        "{fault}"
    );
    for seed in 1..8 {
        assert!(run(seed, &format!("{LEAVE} {MEET} {READ}")).is_err(), "seed {seed}");
    }
}

#[test]
fn cluster_barrier_arrivals_and_waits_must_pair() {
    caught("barrier.cluster.wait.aligned;", FaultKind::DivergentBarrier, "without arriving there first");
    caught(
        "barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;",
        FaultKind::DivergentBarrier,
        "arrives at the cluster's barrier again",
    );
    let part = "setp.lt.u32 %p2, %r1, 5; @%p2 bra over; barrier.cluster.arrive.aligned; over:";
    caught(part, FaultKind::DivergentBarrier, "living lanes");
    // The second block never arrives at the cluster barrier. Its second warp waits at a block barrier for its first
    // warp, which has exited.
    let one = "setp.eq.u32 %p2, %r2, 1; @%p2 bra own; barrier.cluster.arrive; barrier.cluster.wait; ret;
        own: setp.lt.u32 %p3, %r1, 32; @%p3 ret; bar.sync 0, 64;";
    caught(one, FaultKind::Deadlock, "wait for threads that never arrive");
    // Threads that exit count as arrived.
    let exited = format!("setp.eq.u32 %p2, %r2, 1; @%p2 ret; {MEET} mov.u32 %r12, 9; st.global.u32 [%d2], %r12;");
    assert_eq!(run(0, &exited).unwrap(), (0..256).map(|i| if i / 64 % 2 == 0 { 9 } else { 0 }).collect::<Vec<u32>>());
}

/// Each block's first thread initialises an mbarrier for 64 arrivals. Threads then arrive at the neighbour's mbarrier
/// and wait at their own.
fn arrivals(arrive: &str, end: &str) -> String {
    format!(
        "@%p1 bra set; mbarrier.init.shared::cta.b64 [%r8], 64; fence.mbarrier_init.release.cluster; set: {MEET}
         mad.lo.u32 %r10, %r4, 1000, %r1; mapa.shared::cluster.u32 %r11, %r9, %r3;
         st.shared::cluster.u32 [%r11], %r10; mapa.shared::cluster.u32 %r14, %r8, %r3;
         {arrive}
         spin: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra spin;
         ld.shared.u32 %r12, [%r9]; st.global.u32 [%d2], %r12; {end}"
    )
}

#[test]
fn threads_arrive_at_mbarriers_of_other_blocks() {
    let arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r14];";
    for seed in 0..6 {
        assert_eq!(run(seed, &arrivals(arrive, MEET)).unwrap(), neighbour_values(), "seed {seed}");
        // A block exits only after all arrivals at its mbarrier, so no further barrier is needed.
        assert_eq!(run(seed, &arrivals(arrive, "")).unwrap(), neighbour_values(), "seed {seed}");
    }
    // The faults are too many arrivals, no arrivals, a local arrive at a remote mbarrier, an arrival that the target
    // block does not wait for, and an arrival at an mbarrier that may not be initialised yet.
    let many = arrive.replace("[%r14]", "[%r14], 65");
    caught(&arrivals(&many, MEET), FaultKind::Mbarrier, "65 arrivals are too many");
    caught(&arrivals("", MEET), FaultKind::Deadlock, "64 of 64 arrivals");
    caught(&arrivals("mbarrier.arrive.shared.b64 %d5, [%r14];", MEET), FaultKind::Mbarrier, "only that block may use");
    let set = "@%p1 bra set; mbarrier.init.shared::cta.b64 [%r8], 1; set:";
    let late = format!("{set} {MEET} setp.eq.u32 %p2, %r6, 0; mapa.shared::cluster.u32 %r14, %r8, 1; @%p2 {arrive}");
    caught(&late, FaultKind::SharedRace, "may still access its shared memory");
    let unready = format!("{set} mapa.shared::cluster.u32 %r14, %r8, %r3; @!%p1 {arrive} {MEET}");
    for seed in 0..6 {
        assert!(run(seed, &unready).is_err(), "seed {seed}");
    }
}

#[test]
fn an_arrival_at_a_block_that_has_exited_is_a_fault() {
    // The neighbour announces in global memory that it is about to exit. The first block waits for that, and for some
    // time more.
    let body = "setp.eq.u32 %p2, %r2, 0; @%p2 bra first; @%p1 ret; mbarrier.init.shared::cta.b64 [%r8], 1;
        mov.u32 %r12, 1; st.release.gpu.global.u32 [%d1], %r12; ret;
        first: @%p1 ret; mapa.shared::cluster.u32 %r14, %r8, 1; mov.u32 %r15, 0;
        spin: ld.acquire.gpu.global.u32 %r12, [%d1]; setp.ne.u32 %p3, %r12, 1; @%p3 bra spin;
        more: add.u32 %r15, %r15, 1; ld.acquire.gpu.global.u32 %r12, [%d1]; setp.lt.u32 %p3, %r15, 4000; @%p3 bra more;
        mbarrier.arrive.shared::cluster.b64 _, [%r14];";
    let fault = launch(0, &module(PAIR, body), 2, 64).unwrap_err();
    assert_eq!(fault.kind, FaultKind::OutOfBounds, "{fault}");
    assert!(fault.message.contains("block 1 of the cluster, whose threads have all exited"), "{fault}");
    for seed in 1..6 {
        assert!(launch(seed, &module(PAIR, body), 2, 64).is_err(), "seed {seed}");
    }
}

/// The first thread of rank 0 copies 256 bytes to the blocks in the mask `%h1`. Each block waits at its own mbarrier.
fn multicast(ranks: u32, expect: u32, copy: &str) -> String {
    format!(
        "@%p1 bra set; mbarrier.init.shared::cta.b64 [%r8], 1; fence.mbarrier_init.release.cluster;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], {expect}; set: {MEET}
         or.b32 %r10, %r1, %r2; setp.ne.u32 %p3, %r10, 0; @%p3 bra wait; mov.b16 %h1, {ranks};
         {copy}
         wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra wait;
         ld.shared.u32 %r12, [%r9]; st.global.u32 [%d2], %r12; {MEET}"
    )
}

const TO_ALL: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r7], [%d1], 256, [%r8], %h1;";

#[test]
fn a_multicast_fills_the_shared_memory_of_several_blocks() {
    let expected: Vec<u32> = (0..256).map(|i| i % 64 * 5).collect();
    let one_by_one = "mapa.shared::cluster.u32 %r11, %r7, 1; mapa.shared::cluster.u32 %r14, %r8, 1;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d1], 256, [%r8];
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d1], 256, [%r14];";
    for seed in 0..6 {
        assert_eq!(run(seed, &multicast(3, 256, TO_ALL)).unwrap(), expected, "seed {seed}");
        assert_eq!(run(seed, &multicast(3, 256, one_by_one)).unwrap(), expected, "seed {seed}");
    }
    caught(&multicast(1, 256, TO_ALL), FaultKind::Deadlock, "256 bytes missing");
    caught(&multicast(7, 256, TO_ALL), FaultKind::OutOfBounds, "blocks 0x0007 of a cluster of 2");
    caught(&multicast(3, 240, TO_ALL), FaultKind::Deadlock, "bytes missing");
    let mixed = one_by_one.replace("[%r11], [%d1], 256, [%r14]", "[%r11], [%d1], 256, [%r8]");
    caught(&multicast(3, 256, &mixed), FaultKind::Mbarrier, "notifies an mbarrier of block 0");
}

#[test]
fn registers_give_the_position_in_the_cluster() {
    let registers = [
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%clusterid.x",
        "%clusterid.y",
        "%nclusterid.x",
        "%nclusterid.y",
    ];
    let stores: String = registers
        .iter()
        .enumerate()
        .map(|(i, name)| format!("mov.u32 %r1, {name}; st.global.u32 [%d1+{}], %r1;", 4 * i))
        .collect();
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64
         .visible .entry k(.param .u64 out) {{ .reg .b32 %r<6>; .reg .b64 %d<3>; ld.param.u64 %d1, [out];
         mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %nctaid.x; mad.lo.u32 %r2, %r3, %r4, %r2;
         mad.wide.u32 %d1, %r2, 40, %d1; {stores} ret; }}"
    );
    let module = PtxModule::parse(&text).unwrap();
    for seed in 0..3 {
        let mut device = EmulatedDevice::new();
        let out = device.alloc(6 * 4 * 40);
        let options = LaunchOptions { seed, cluster: Some([3, 2, 1]), ..LaunchOptions::default() };
        device.launch_with(&options, &module, "k", [6, 4, 1], [1; 3], 0, &[Arg::Ptr(out)]).unwrap();
        let bytes = device.read(out, 6 * 4 * 40).unwrap();
        let words: Vec<u32> = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        for (block, found) in words.chunks_exact(10).enumerate() {
            let (x, y) = (block as u32 % 6, block as u32 / 6);
            assert_eq!(found, [x % 3 + y % 2 * 3, 6, x % 3, y % 2, 3, 2, x / 3, y / 2, 2, 2]);
        }
    }
}

#[test]
fn the_shape_of_a_launch_must_fit_its_clusters() {
    let refused = |bounds: &str, blocks: u32, asked: Option<[u32; 3]>| {
        let mut device = EmulatedDevice::new();
        let out = Arg::Ptr(device.alloc(1 << 16));
        let options = LaunchOptions { cluster: asked, ..LaunchOptions::default() };
        let grid = [blocks, 1, 1];
        let result = device.launch_with(&options, &module(bounds, ""), "k", grid, [32, 1, 1], 0, &[out.clone(), out]);
        result.err().map(|fault| {
            assert_eq!(fault.kind, FaultKind::Launch);
            fault.message.clone()
        })
    };
    let says =
        |found: Option<String>, text: &str| assert!(found.as_ref().is_some_and(|f| f.contains(text)), "{found:?}");
    assert_eq!(refused(PAIR, 4, None), None);
    says(refused(PAIR, 5, None), "a grid of [5, 1, 1] blocks is not a multiple of clusters of [2, 1, 1]");
    says(refused(PAIR, 4, Some([4, 1, 1])), "but the kernel requires [2, 1, 1]");
    says(refused("", 34, Some([17, 1, 1])), "clusters of 17 blocks, but at most 16");
    says(refused(".maxclusterrank 4", 8, Some([8, 1, 1])), "clusters of 8 blocks, but at most 4");
    says(refused(".explicitcluster", 8, None), "must be launched in clusters");
    assert_eq!(refused(".explicitcluster .maxclusterrank 4", 8, Some([4, 1, 1])), None);
}

#[test]
fn a_launch_attribute_gives_the_shape_of_clusters() {
    let device = host::Device::new(0);
    let text = ".version 8.0\n.target sm_80\n.address_size 64
        .visible .entry k(.param .u64 out) { .reg .b32 %r<4>; .reg .b64 %d<2>; ld.param.u64 %d1, [out];
        mov.u32 %r1, %ctaid.x; mad.wide.u32 %d1, %r1, 4, %d1; mov.u32 %r2, %cluster_nctarank;
        mov.u32 %r3, %cluster_ctarank; mad.lo.u32 %r2, %r2, 10, %r3; st.global.u32 [%d1], %r2; ret; }";
    let (kernel, out) = (device.kernel(text, "k"), device.zeros(32));
    assert_eq!(device.launch_in_clusters(&kernel, 8, [4, 1, 1], out), 0);
    assert_eq!(device.words(out, 8).unwrap(), [40, 41, 42, 43, 40, 41, 42, 43]);
    assert_eq!(device.launch_in_clusters(&kernel, 6, [4, 1, 1], out), 1);
}
