//! Running blocks on several cores gives the same memory, reports and faults as one core.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, CostReport, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};

const BLOCKS: u32 = 256;
const THREADS: u32 = 64;

/// Each thread computes a number in a loop and stores it. If `earlier` is set, it adds the number stored by the same
/// thread of the previous block. If `together` is set, all blocks store to the same addresses. The block `bad` stores
/// out of bounds.
const KERNEL: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry numbers(.param .u64 out, .param .u32 earlier, .param .u32 together, .param .u32 bad) {
    .reg .pred %p<5>; .reg .b32 %r<12>; .reg .b64 %d<6>;
    ld.param.u64 %d0, [out];
    ld.param.u32 %r0, [earlier];
    ld.param.u32 %r1, [together];
    ld.param.u32 %r2, [bad];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    mov.u32 %r7, %r6;
    mov.u32 %r8, 300;
again:
    mad.lo.u32 %r7, %r7, 1664525, 1013904223;
    sub.u32 %r8, %r8, 1;
    setp.ne.u32 %p0, %r8, 0;
    @%p0 bra again;
    setp.ne.u32 %p1, %r1, 0;
    selp.b32 %r6, %r5, %r6, %p1;
    mul.wide.u32 %d1, %r6, 4;
    add.u64 %d1, %d1, %d0;
    setp.ne.u32 %p2, %r0, 0;
    setp.eq.u32 %p3, %r3, 0;
    @%p3 bra store;
    @!%p2 bra store;
    ld.global.u32 %r9, [%d1+-256];
    add.u32 %r7, %r7, %r9;
store:
    setp.eq.u32 %p4, %r3, %r2;
    selp.b64 %d2, 1048576, 0, %p4;
    add.u64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r7;
    ret;
}";

/// The result of a launch, and the contents of memory afterwards.
type Outcome = (Result<CostReport, Box<Fault>>, Vec<u8>);

fn launch(options: &LaunchOptions, [earlier, together, bad]: [u32; 3]) -> Outcome {
    let module = PtxModule::parse(KERNEL).unwrap();
    let mut device = EmulatedDevice::new();
    let out = device.alloc_from("out", &[0xab; (BLOCKS * THREADS * 4) as usize]);
    let arguments = [Arg::Ptr(out), Arg::U32(earlier), Arg::U32(together), Arg::U32(bad)];
    let grid = ([BLOCKS, 1, 1], [THREADS, 1, 1]);
    let result = device.launch_with(options, &module, "numbers", grid.0, grid.1, 0, &arguments);
    (result, device.read(out, (BLOCKS * THREADS * 4) as usize).unwrap())
}

/// Returns the outcome on one core, after asserting that it is the same on several cores.
fn on_any_cores(options: &LaunchOptions, arguments: [u32; 3]) -> Outcome {
    let one = launch(&LaunchOptions { cores: 1, ..options.clone() }, arguments);
    for cores in [2, 3, 8] {
        let several = launch(&LaunchOptions { cores, ..options.clone() }, arguments);
        assert_eq!(format!("{:?}", several.0), format!("{:?}", one.0), "{cores} cores");
        assert!(several.1 == one.1, "memory differs with {cores} cores");
    }
    one
}

const NONE: u32 = u32::MAX;

#[test]
fn independent_blocks_match_one_core() {
    let (report, memory) = on_any_cores(&LaunchOptions::default(), [0, 0, NONE]);
    assert_eq!(report.unwrap().distinct_sectors, u64::from(BLOCKS * THREADS * 4 / 32));
    let step = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    let number = |i: u32| (0..300).fold(i, |x, _| step(x)).to_le_bytes();
    assert!(memory == (0..BLOCKS * THREADS).flat_map(number).collect::<Vec<u8>>());
}

#[test]
fn blocks_that_read_stores_of_others_match_one_core() {
    let (report, _) = on_any_cores(&LaunchOptions::default(), [1, 0, NONE]);
    assert_eq!(report.unwrap_err().kind, FaultKind::GlobalRace);
    let unchecked = LaunchOptions { check_global_races: false, ..LaunchOptions::default() };
    let (report, memory) = on_any_cores(&unchecked, [1, 0, NONE]);
    report.unwrap();
    let words: Vec<u32> = memory.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    let step = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    let mut sum = 0u32;
    for block in 0..BLOCKS {
        sum = sum.wrapping_add((0..300).fold(block * THREADS, |x, _| step(x)));
        assert_eq!(words[(block * THREADS) as usize], sum, "block {block}");
    }
}

#[test]
fn blocks_that_store_to_the_same_address_match_one_core() {
    let (report, _) = on_any_cores(&LaunchOptions::default(), [0, 1, NONE]);
    assert_eq!(report.unwrap_err().kind, FaultKind::GlobalRace);
    let unchecked = LaunchOptions { check_global_races: false, ..LaunchOptions::default() };
    on_any_cores(&unchecked, [0, 1, NONE]).0.unwrap();
}

#[test]
fn faults_match_one_core() {
    for bad in [0, 60, 130, 200, 255] {
        let (report, memory) = on_any_cores(&LaunchOptions::default(), [0, 0, bad]);
        let fault = report.unwrap_err();
        assert_eq!((fault.kind, fault.block[0]), (FaultKind::OutOfBounds, bad));
        let stored = memory.chunks((THREADS * 4) as usize).filter(|part| part[0..8] != [0xab; 8]).count();
        assert_eq!(stored as u32, bad, "blocks before the fault");
    }
}

#[test]
fn limits_hold_for_all_blocks_together() {
    let whole = launch(&LaunchOptions { cores: 1, ..LaunchOptions::default() }, [0, 0, NONE]).0.unwrap();
    let limit = whole.total.instructions;
    for (instruction_limit, fits) in [(limit, true), (limit - 10_000, false)] {
        let (report, _) = on_any_cores(&LaunchOptions { instruction_limit, ..LaunchOptions::default() }, [0, 0, NONE]);
        assert_eq!(report.is_ok(), fits, "{report:?}");
    }
}
