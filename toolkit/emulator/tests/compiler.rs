//! Faults that the compiler introduces into correct-looking sources (`broken/`). The emulator catches each one.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};

const PTX: &str = include_str!("broken/broken.ptx");

/// Runs a kernel with an input and an output buffer on the numbers 0 to n - 1, and returns the output.
fn run(kernel: &str, seed: u64, (blocks, threads): (u32, u32), n: u32, more: &[Arg]) -> Result<Vec<f32>, Box<Fault>> {
    let module = PtxModule::parse(PTX).unwrap();
    let mut device = EmulatedDevice::new();
    let numbers: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let input = device.alloc_from("input", &numbers);
    let output = device.alloc_from("output", &numbers);
    let args = [&[Arg::Ptr(input), Arg::Ptr(output)], more].concat();
    let options = LaunchOptions { seed, ..LaunchOptions::default() };
    device.launch_with(&options, &module, kernel, [blocks, 1, 1], [threads, 1, 1], 0, &args)?;
    let bytes = device.read(output, 4 * n as usize).unwrap();
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[test]
fn shuffles_sunk_into_a_branch_are_caught() {
    for seed in 0..3 {
        assert_eq!(run("sum_right", seed, (1, 32), 32, &[]).unwrap()[0], 496.0);
        let fault = run("sum_pure", seed, (1, 32), 32, &[]).unwrap_err();
        assert_eq!((fault.kind, fault.thread), (FaultKind::MissingLanes, Some([0, 0, 0])));
        assert!(fault.message.contains("names lanes 0xffffffff, but only lanes 0x00000001"), "{fault}");
        let (file, line) = fault.source.unwrap();
        let text = include_str!("broken/src/lib.rs").lines().nth(line as usize - 1).unwrap();
        assert!(file.ends_with("broken/src/lib.rs") && text.contains("asm!"), "{file}:{line}: {text}");
    }
}

#[test]
fn a_barrier_copied_into_both_arms_is_caught() {
    // Each warp takes one arm as a whole, so both copies of the barrier are reached by whole warps.
    assert_eq!(run("copy_threaded", 0, (2, 512), 992, &[Arg::U32(992)]).unwrap()[991], 991.0);
    // With 1000 elements, one warp diverges.
    for seed in 0..3 {
        let fault = run("copy_threaded", seed, (2, 512), 1000, &[Arg::U32(1000)]).unwrap_err();
        assert_eq!((fault.kind, fault.block), (FaultKind::DivergentBarrier, [1, 0, 0]));
        assert!(fault.message.contains("of the warp's living lanes 0xffffffff only"), "{fault}");
        assert_eq!(fault.opcode, "bar.sync");
    }
}
