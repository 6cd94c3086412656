//! Waiting for other blocks.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, LaunchOptions, PtxModule};

/// A warp that polls an mbarrier unsuccessfully and then waits thousands of turns for another block is not a deadlock.
#[test]
fn polling_an_mbarrier_and_then_waiting_for_a_block_is_no_deadlock() {
    // In block 0, the second warp waits for the first warp and then for block 1, which keeps adding to a word.
    let body = "mov.u32 %r10, %ctaid.x;\nsetp.ne.u32 %p4, %r10, 0;\n@%p4 bra $work;\n@%p1 bra $ready;\n\
                mbarrier.init.shared.b64 [%r3], 1;\n$ready:\nbar.sync 0;\nsetp.ge.u32 %p3, %r1, 32;\n@%p3 bra $consume;\n\
                @%p1 bra $end;\nmov.u32 %r11, 0;\n$delay:\nadd.u32 %r11, %r11, 1;\nsetp.lt.u32 %p5, %r11, 70000;\n\
                @%p5 bra $delay;\nmbarrier.arrive.shared.b64 %rd5, [%r3];\nbra $end;\n$consume:\nWAIT\n$flag:\n\
                ld.acquire.gpu.global.u32 %r12, [%rd2];\nsetp.lt.u32 %p6, %r12, 30000;\n@%p6 bra $flag;\nbra $end;\n\
                $work:\n@%p1 bra $end;\nmov.u32 %r11, 0;\n$add:\natom.global.acq_rel.gpu.add.u32 %r13, [%rd2], 1;\n\
                add.u32 %r11, %r11, 1;\nsetp.lt.u32 %p7, %r11, 30000;\n@%p7 bra $add;\n$end:\n"
        .replace("WAIT", "$spin:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra $spin;\n");
    let module = PtxModule::parse(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry wait(.param .u64 out)\n{{\n\
         .reg .b32 %r<20>;\n.reg .b64 %rd<8>;\n.reg .pred %p<8>;\n.shared .align 8 .b64 full[1];\n\
         ld.param.u64 %rd2, [out];\nmov.u32 %r1, %tid.x;\nsetp.ne.u32 %p1, %r1, 0;\nmov.u32 %r3, full;\n{body}\nret;\n}}\n"
    ))
    .unwrap();
    for seed in 1..6 {
        let mut device = EmulatedDevice::new();
        let output = device.alloc_from("out", &[0; 4]);
        let options = LaunchOptions { seed, ..LaunchOptions::default() };
        device.launch_with(&options, &module, "wait", [2, 1, 1], [64, 1, 1], 0, &[Arg::Ptr(output)]).unwrap();
        assert_eq!(device.read(output, 4).unwrap(), 30000u32.to_le_bytes());
    }
}
