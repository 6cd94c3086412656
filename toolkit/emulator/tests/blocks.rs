//! Blocks that cooperate through global memory: every block order works, and missing fences or atomics are faults.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};
use std::collections::HashSet;

const BLOCKS: u32 = 12;

fn module(body: &str) -> PtxModule {
    PtxModule::parse(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry blocks(.param .u64 data, .param .u64 counter, .param .u64 out)\n{{\n\
         .reg .b32 %r<20>;\n.reg .b64 %rd<10>;\n.reg .pred %p<4>;\n.shared .align 4 .b32 flag;\n\
         ld.param.u64 %rd1, [data];\nld.param.u64 %rd2, [counter];\nld.param.u64 %rd3, [out];\n\
         mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %nctaid.x;\nmad.lo.u32 %r4, %r2, 64, %r1;\n\
         mul.wide.u32 %rd4, %r4, 4;\nadd.u64 %rd4, %rd1, %rd4;\nmul.wide.u32 %rd5, %r1, 4;\n\
         setp.ne.u32 %p1, %r1, 0;\n{body}\nret;\n}}\n"
    ))
    .unwrap()
}

/// Runs twelve blocks of 64 threads and returns `out`.
fn run(seed: u64, body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let module = module(body);
    let mut device = EmulatedDevice::new();
    let data = device.alloc_named("data", BLOCKS as usize * 256);
    let counter = device.alloc_from("counter", &[0; 64]);
    let out = device.alloc_from("out", &[0; 260]);
    let options = LaunchOptions { seed, instruction_limit: 1 << 24, ..LaunchOptions::default() };
    let args = [Arg::Ptr(data), Arg::Ptr(counter), Arg::Ptr(out)];
    device.launch_with(&options, &module, "blocks", [BLOCKS, 1, 1], [64, 1, 1], 0, &args)?;
    let out = device.read(out, 260).unwrap();
    Ok(out.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Every thread stores a partial result, and the last block to arrive sums all of them.
const LAST_ARRIVER: &str = "st.global.u32 [%rd4], %r4;\nbar.sync 0;\n@%p1 bra $arrived;\nRELEASE\nsub.u32 %r5, %r3, 1;\n\
    ATOMIC %r6, [%rd2], %r5;\nACQUIRE\nst.shared.u32 [flag], %r6;\n$arrived:\nbar.sync 0;\nld.shared.u32 %r6, [flag];\n\
    add.u32 %r6, %r6, 1;\nsetp.ne.u32 %p2, %r6, %r3;\n@%p2 ret;\nmov.u32 %r7, 0;\nmov.u32 %r8, 0;\nadd.u64 %rd6, %rd1, %rd5;\n\
    $next:\nld.global.u32 %r9, [%rd6];\nadd.u32 %r7, %r7, %r9;\nadd.u64 %rd6, %rd6, 256;\nadd.u32 %r8, %r8, 1;\n\
    setp.lt.u32 %p2, %r8, %r3;\n@%p2 bra $next;\nadd.u64 %rd7, %rd3, %rd5;\nst.global.u32 [%rd7], %r7;\n\
    st.global.u32 [%rd3+256], %r2;\n";

fn last_arriver(release: &str, atomic: &str, acquire: &str) -> String {
    LAST_ARRIVER.replace("RELEASE", release).replace("ATOMIC", atomic).replace("ACQUIRE", acquire)
}

#[test]
fn the_last_arriver_merges_in_every_order() {
    let forms = [
        ("membar.gl;", "atom.global.inc.u32", "membar.gl;"),
        ("fence.acq_rel.gpu;", "atom.relaxed.gpu.global.inc.u32", "fence.sc.gpu;"),
        ("", "atom.acq_rel.gpu.global.inc.u32", ""),
        ("fence.acq_rel.gpu;", "atom.acquire.gpu.global.inc.u32", ""),
    ];
    for (release, atomic, acquire) in forms {
        let body = last_arriver(release, atomic, acquire);
        let mut last = HashSet::new();
        for seed in 0..12 {
            let out = run(seed, &body).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
            assert!((0..64).all(|t| out[t as usize] == (0..BLOCKS).map(|block| block * 64 + t).sum::<u32>()));
            last.insert(out[64]);
        }
        assert!(last.len() > 3, "the last arriver was always one of {last:?}");
    }
}

#[test]
fn a_merge_without_fences_is_a_race() {
    let forms = [
        ("", "atom.global.inc.u32", "membar.gl;"),
        ("membar.gl;", "atom.global.inc.u32", ""),
        ("membar.cta;", "atom.global.inc.u32", "membar.gl;"),
        ("fence.acq_rel.gpu;", "atom.global.inc.u32", "fence.acq_rel.cta;"),
        ("", "atom.acquire.gpu.global.inc.u32", ""),
        ("", "atom.acq_rel.cta.global.inc.u32", ""),
    ];
    for (release, atomic, acquire) in forms {
        for seed in 0..4 {
            let fault = run(seed, &last_arriver(release, atomic, acquire)).unwrap_err();
            assert_eq!(fault.kind, FaultKind::GlobalRace, "{fault}");
            assert!(fault.message.contains("wrote in this launch, with no fence and atomic between"), "{fault}");
            assert_eq!(fault.buffer.as_deref(), Some("data"));
        }
    }
}

#[test]
fn blocks_can_wait_for_later_blocks() {
    // Block b waits until block b + 1 has passed on its data. The last block starts the chain.
    let body = "@%p1 bra $go;\nmul.wide.u32 %rd6, %r2, 4;\nadd.u64 %rd6, %rd2, %rd6;\nadd.u32 %r5, %r2, 1;\n\
                setp.eq.u32 %p2, %r5, %r3;\n@%p2 bra $go;\n$spin:\nLOAD %r6, [%rd6+4];\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 bra $spin;\n\
                $go:\nbar.sync 0;\nsetp.eq.u32 %p3, %r2, 11;\nmov.u32 %r7, %r1;\n@%p3 bra $first;\nld.global.u32 %r7, [%rd4+256];\n\
                add.u32 %r7, %r7, 1;\n$first:\nst.global.u32 [%rd4], %r7;\nbar.sync 0;\n@%p1 ret;\nSTORE [%rd6], 1;\n\
                setp.ne.u32 %p2, %r2, 0;\n@%p2 ret;\nst.global.u32 [%rd3], %r7;\n";
    let right = body.replace("LOAD", "ld.acquire.gpu.global.u32").replace("STORE", "st.release.gpu.global.u32");
    let relaxed = body.replace("LOAD", "ld.volatile.global.u32").replace("STORE", "st.volatile.global.u32");
    let plain = body.replace("LOAD", "ld.volatile.global.u32").replace("STORE", "st.global.u32");
    for seed in 0..6 {
        assert_eq!(run(seed, &right).unwrap()[0], BLOCKS - 1);
        let fault = run(seed, &relaxed).unwrap_err();
        assert_eq!((fault.kind, fault.buffer.as_deref()), (FaultKind::GlobalRace, Some("data")), "{fault}");
        let fault = run(seed, &plain).unwrap_err();
        assert_eq!((fault.kind, fault.buffer.as_deref()), (FaultKind::GlobalRace, Some("counter")), "{fault}");
    }
}

#[test]
fn warps_of_a_block_need_a_barrier_for_global_memory() {
    // Each thread reads data written by the other warp.
    let body = "st.global.u32 [%rd4], %r1;\nSYNC\nxor.b32 %r5, %r4, 32;\nmul.wide.u32 %rd6, %r5, 4;\n\
                add.u64 %rd6, %rd1, %rd6;\nld.global.u32 %r6, [%rd6];\n";
    run(0, &body.replace("SYNC", "bar.sync 0;")).unwrap();
    for seed in 0..4 {
        let fault = run(seed, &body.replace("SYNC", "")).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::GlobalRace | FaultKind::Uninitialised), "{fault}");
    }
    // The read may come before or after the write. Both orders are a race.
    let overwritten = format!("st.global.u32 [%rd4], 7;\nbar.sync 0;\n{}", body.replace("SYNC", ""));
    let faults: Vec<_> = (0..4).map(|seed| run(seed, &overwritten).map_err(|fault| fault.kind)).collect();
    assert!(faults.contains(&Err(FaultKind::GlobalRace)), "{faults:?}");
}

#[test]
fn conflicting_writes_are_races() {
    let fault = run(0, "st.global.u32 [%rd3], %r2;\n").unwrap_err();
    assert_eq!(fault.kind, FaultKind::GlobalRace);
    assert!(fault.message.contains("writes bytes from offset 0 of `out` that warp"), "{fault}");
    // All threads may write the same value, atomics may collide, and neighbours may share a sector.
    run(0, "st.global.u32 [%rd3], 7;\n").unwrap();
    assert_eq!(run(3, "red.global.add.u32 [%rd3], 1;\n").unwrap()[0], 64 * BLOCKS);
    let neighbours = "@%p1 ret;\nmul.wide.u32 %rd6, %r2, 2;\nadd.u64 %rd6, %rd3, %rd6;\nst.global.u16 [%rd6], 5;\n\
                      ld.global.u16 %r5, [%rd6];\n";
    for seed in 0..3 {
        run(seed, neighbours).unwrap();
    }
}
