//! Planted faults, each caught with the right message, next to correct code that raises none.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use emulator::{Arg, CostReport, EmulatedDevice, Fault, FaultKind, PtxModule};

/// A kernel with one pointer parameter. `%r1` is the thread, `%rd1` the start of the data and `%rd2` the address of the
/// thread's word.
fn module(body: &str) -> PtxModule {
    PtxModule::parse(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"src/planted.rs\"\n\
         .visible .entry planted(.param .u64 data)\n{{\n.reg .b32 %r<20>;\n.reg .b64 %rd<10>;\n.reg .pred %p<4>;\n\
         .shared .align 16 .b8 tile[1024];\n\
         ld.param.u64 %rd1, [data];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd1, %rd2;\n\
         shl.b32 %r2, %r1, 2;\nmov.u32 %r3, tile;\nadd.u32 %r3, %r3, %r2;\nxor.b32 %r4, %r3, 128;\n\
         .loc 1 42 5\n{body}\nret;\n}}\n"
    ))
    .unwrap()
}

fn run(threads: u32, body: &str) -> Result<CostReport, Box<Fault>> {
    let module = module(body);
    let mut device = EmulatedDevice::new();
    let data = device.alloc_from("data", &[0; 1024]);
    device.launch(&module, "planted", [1; 3], [threads, 1, 1], 0, &[Arg::Ptr(data)])
}

#[track_caller]
fn caught(threads: u32, body: &str, kind: FaultKind, message: &str) -> Box<Fault> {
    let fault = run(threads, body).unwrap_err();
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.to_string().contains(message), "{fault}");
    assert_eq!(fault.source, Some(("src/planted.rs".to_string(), 42)));
    fault
}

#[track_caller]
fn right(threads: u32, body: &str) -> CostReport {
    run(threads, body).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn missing_barrier() {
    let (store, load) = ("st.shared.u32 [%r3], %r1;\n", "ld.shared.u32 %r5, [%r4];\nst.global.u32 [%rd2], %r5;\n");
    right(64, &format!("{store}bar.sync 0;\n{load}"));
    // Across warps, the read either comes first and finds uninitialised memory, or it is a race.
    let fault = run(64, &format!("{store}{load}")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Uninitialised | FaultKind::SharedRace), "{fault}");
    let rewritten = format!("{store}bar.sync 0;\n{store}{load}");
    caught(64, &rewritten, FaultKind::SharedRace, "with no barrier between");
}

#[test]
fn write_after_read() {
    let body = "st.shared.u32 [%r3], %r1;\nbar.sync 0;\nld.shared.u32 %r5, [%r4];\nBARRIERst.shared.u32 [%r3], %r5;\n";
    right(64, &body.replace("BARRIER", "bar.sync 0;\n"));
    caught(64, &body.replace("BARRIER", ""), FaultKind::SharedRace, "of shared memory that thread");
}

#[test]
fn warp_synchronous_code() {
    // Lanes exchange values through shared memory, ordered only by a warp barrier.
    let body = "st.shared.u32 [%r3], %r1;\nSYNCxor.b32 %r6, %r3, 4;\nld.shared.u32 %r5, [%r6];\n\
                SYNCst.shared.u32 [%r3], %r5;\n";
    right(64, &body.replace("SYNC", "bar.warp.sync -1;\n"));
    caught(64, &body.replace("SYNC", ""), FaultKind::SharedRace, "with no barrier between");
    // Each half warp synchronises on its own.
    let halves = "shr.u32 %r7, %r1, 4;\nand.b32 %r7, %r7, 1;\nshl.b32 %r7, %r7, 4;\nmov.u32 %r8, 0xffff;\n\
                  shl.b32 %r8, %r8, %r7;\n";
    let body = format!("{halves}{}", body.replace("SYNC", "bar.warp.sync %r8;\n"));
    right(64, &body);
    caught(64, &body.replace("%r3, 4;", "%r3, 64;"), FaultKind::SharedRace, "with no barrier between");
}

#[test]
fn named_barriers() {
    // Warp 0 produces and warp 1 consumes. The barrier counts 64 threads.
    let body = "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $consume;\nst.shared.u32 [%r3], %r1;\nPRODUCE\nbra $done;\n\
                $consume:\nCONSUME\nld.shared.u32 %r5, [%r4];\n$done:\n";
    right(64, &body.replace("PRODUCE", "bar.arrive 3, 64;").replace("CONSUME", "bar.sync 3, 64;"));
    let alone = body.replace("PRODUCE", "").replace("CONSUME", "bar.sync 3, 64;");
    caught(64, &alone, FaultKind::Deadlock, "warp 1 at barrier 3 wait for threads that never arrive");
    // Writes by the producer after its arrival are not ordered.
    let late =
        body.replace("PRODUCE", "bar.arrive 3, 64;\nst.shared.u32 [%r3], %r2;").replace("CONSUME", "bar.sync 3, 64;");
    caught(64, &late, FaultKind::SharedRace, "with no barrier between");
}

#[test]
fn neighbours_that_write_halves_of_a_word() {
    right(64, "shl.b32 %r6, %r1, 1;\nmov.u32 %r7, tile;\nadd.u32 %r6, %r6, %r7;\nst.shared.u16 [%r6], 5;\n");
    caught(64, "mov.u32 %r7, tile;\nst.shared.u32 [%r7], %r1;\n", FaultKind::SharedRace, "thread 1 writes 4 bytes");
    // It is no race if all threads write the same value.
    right(64, "mov.u32 %r7, tile;\nst.shared.u32 [%r7], 1;\n");
}

#[test]
fn out_of_bounds() {
    let fault = caught(64, "ld.global.u32 %r5, [%rd2+1000];\n", FaultKind::OutOfBounds, "offset 1024 of `data`");
    assert_eq!((fault.thread, fault.buffer.as_deref()), (Some([6, 0, 0]), Some("data")));
    caught(1, "ld.global.u32 %r5, [%rd2-4];\n", FaultKind::OutOfBounds, "4 before the start of `data`");
    caught(1, "mov.u64 %rd3, 16;\nld.global.u32 %r5, [%rd3];\n", FaultKind::OutOfBounds, "in no buffer");
    caught(1, "st.shared.u32 [%r3+4096], %r1;\n", FaultKind::OutOfBounds, "of shared memory, which has 1024 bytes");
    caught(1, "mov.u64 %rd3, 0;\natom.global.add.u32 %r5, [%rd3], 1;\n", FaultKind::OutOfBounds, "in no buffer");
}

#[test]
fn misaligned() {
    caught(1, "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2+8];\n", FaultKind::Misaligned, "16 bytes at");
    caught(1, "st.shared.u32 [%r3+2], %r1;\n", FaultKind::Misaligned, "not a multiple of 4");
    right(1, "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2+16];\n");
}

#[test]
fn uninitialised_reads() {
    caught(
        1,
        "ld.shared.u32 %r5, [%r3];\n",
        FaultKind::Uninitialised,
        "4 bytes at offset 0x0 of shared memory that nothing wrote",
    );
    let module = module("ld.global.u32 %r5, [%rd2];\n");
    let mut device = EmulatedDevice::new();
    let data = device.alloc_named("fresh", 1024);
    device.write(data, &[0; 12]).unwrap();
    let fault = device.launch(&module, "planted", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(data)]).unwrap_err();
    assert_eq!((fault.kind, fault.thread), (FaultKind::Uninitialised, Some([3, 0, 0])));
    assert!(fault.message.contains("4 bytes at offset 12 of `fresh` that nothing wrote"), "{fault}");
    assert!(device.read(data, 16).is_err());
}

#[test]
fn freed_memory() {
    let module = module("ld.global.u32 %r5, [%rd2];\n");
    let mut device = EmulatedDevice::new();
    let data = device.alloc_from("freed", &[0; 1024]);
    device.free(data).unwrap();
    let fault = device.launch(&module, "planted", [1; 3], [1; 3], 0, &[Arg::Ptr(data)]).unwrap_err();
    assert!(fault.message.contains("`freed`, which was freed"), "{fault}");
    assert!(device.free(data).is_err());
}

#[test]
fn divergent_barrier() {
    let body = "setp.lt.u32 %p1, %r1, 40;\n@%p1 bra $arm;\nbra $done;\n$arm:\nbar.sync 0;\n$done:\n";
    let fault = caught(64, body, FaultKind::DivergentBarrier, "lanes 0x000000ff of the warp's living lanes 0xffffffff");
    assert_eq!((fault.ptx_line, fault.opcode.as_str()), (24, "bar.sync"));
    // The barrier does not wait for lanes that have exited.
    right(64, "setp.ge.u32 %p1, %r1, 40;\n@%p1 exit;\nbar.sync 0;\n");
}

#[test]
fn collective_with_missing_lanes() {
    let body = "setp.lt.u32 %p1, %r1, 8;\n@%p1 shfl.sync.bfly.b32 %r5, %r1, 1, 31, MASK;\n";
    right(32, &body.replace("MASK", "0xff"));
    caught(
        32,
        &body.replace("MASK", "-1"),
        FaultKind::MissingLanes,
        "names lanes 0xffffffff, but only lanes 0x000000ff",
    );
    caught(32, &body.replace("MASK", "0x7f"), FaultKind::MissingLanes, "not itself");
}

#[test]
fn missing_wait_of_an_asynchronous_copy() {
    let body = "mul.wide.u32 %rd3, %r1, 16;\nadd.u64 %rd3, %rd1, %rd3;\nshl.b32 %r6, %r1, 4;\nmov.u32 %r7, tile;\n\
                add.u32 %r6, %r6, %r7;\nst.shared.u32 [%r6], 0;\ncp.async.cg.shared.global [%r6], [%rd3], 16;\n\
                cp.async.commit_group;\nWAIT\nld.shared.u32 %r5, [%r6];\n";
    right(32, &body.replace("WAIT", "cp.async.wait_group 0;"));
    right(32, &body.replace("WAIT", "cp.async.wait_all;"));
    caught(32, &body.replace("WAIT", ""), FaultKind::AsyncRegion, "the asynchronous copy of thread 0 still writes it");
    caught(32, &body.replace("WAIT", "cp.async.wait_group 1;"), FaultKind::AsyncRegion, "a wait is missing");
    // The source must not be written while the copy is in flight.
    let written = "st.global.u32 [%rd3], 7;\ncp.async.wait_all;";
    caught(
        32,
        &body.replace("WAIT", written),
        FaultKind::AsyncRegion,
        "were written while an asynchronous copy still read them",
    );
    // Reading another thread's copy also needs a barrier after the wait.
    let other = body.replace("ld.shared.u32 %r5, [%r6]", "xor.b32 %r6, %r6, 16;\nld.shared.u32 %r5, [%r6]");
    right(32, &other.replace("WAIT", "cp.async.wait_all;\nbar.sync 0;"));
    caught(32, &other.replace("WAIT", "cp.async.wait_all;"), FaultKind::SharedRace, "with no barrier between");
}

#[test]
fn a_fault_in_a_library_names_the_calling_line() {
    let kernel = |body: &str| {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"./src/own.rs\"\n.file 2 \"/rustc/core.rs\"\n\
             .func fail()\n{{\n.loc 2 7 1\ntrap;\nret;\n}}\n\
             .visible .entry planted(.param .u64 data)\n{{\n.reg .b32 %r<2>;\n.loc 1 10 1\nmov.u32 %r1, %tid.x;\n\
             {body}.loc 1 12 1\nret;\n}}\n"
        );
        let mut device = EmulatedDevice::new();
        let data = device.alloc_from("data", &[0; 4]);
        let module = PtxModule::parse(&text).unwrap();
        device.launch(&module, "planted", [1; 3], [1; 3], 0, &[Arg::Ptr(data)]).unwrap_err()
    };
    let (library, own) = (Some(("/rustc/core.rs".to_string(), 7)), |line| Some(("./src/own.rs".to_string(), line)));
    let called = kernel(".loc 1 11 1\ncall.uni fail, ();\n");
    assert_eq!((&called.source, &called.reached_from), (&library, &own(11)));
    let inlined = kernel(".loc 2 7 1\ntrap;\n");
    assert_eq!((&inlined.source, &inlined.reached_from), (&library, &own(10)));
    let text = "at /rustc/core.rs:7, reached from ./src/own.rs:10";
    assert!(inlined.to_string().contains(text), "{inlined}");
    let direct = kernel(".loc 1 11 1\ntrap;\n");
    assert_eq!((&direct.source, &direct.reached_from), (&own(11), &None));
}

#[test]
fn trap_and_endless_loop() {
    let fault = caught(32, "setp.eq.u32 %p1, %r1, 7;\n@%p1 trap;\n", FaultKind::Trap, "a Rust panic");
    assert_eq!(fault.thread, Some([7, 0, 0]));
    let module = module("$again:\nbra $again;\n");
    let mut device = EmulatedDevice::new();
    let options = emulator::LaunchOptions { instruction_limit: 1 << 20, ..Default::default() };
    let data = device.alloc(4);
    let fault = device.launch_with(&options, &module, "planted", [1; 3], [1; 3], 0, &[Arg::Ptr(data)]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InstructionLimit);
    for part in ["LaunchOptions::instruction_limit", "set_launch_options", "QUIRE_EMULATOR_INSTRUCTION_LIMIT"] {
        assert!(fault.message.contains(part), "{part} is not in: {fault}");
    }
}

#[test]
fn an_endless_loop_ends_within_seconds_by_default() {
    for body in ["", "ld.volatile.global.u32 %r5, [%rd1];\n"] {
        let module = module(&format!("$again:\n{body}bra $again;\n"));
        let mut device = EmulatedDevice::new();
        let data = device.alloc_from("data", &[0; 4]);
        let fault = device.launch(&module, "planted", [1; 3], [1; 3], 0, &[Arg::Ptr(data)]).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InstructionLimit, "{fault}");
    }
}

#[test]
fn spinning_on_another_warp() {
    // Warp 0 waits for a write by warp 1, so its turn must end.
    let body = "mov.u32 %r7, tile;\nst.volatile.shared.u32 [%r7], 0;\nbar.sync 0;\nsetp.ge.u32 %p1, %r1, 32;\n@%p1 bra $write;\n\
                $spin:\nld.volatile.shared.u32 %r5, [%r7];\nsetp.eq.u32 %p2, %r5, 0;\n@%p2 bra $spin;\nbra $done;\n\
                $write:\nst.volatile.shared.u32 [%r7], 1;\n$done:\n";
    right(64, body);
}

#[test]
fn unknown_instructions_are_refused() {
    let parse = |line: &str| {
        let text = format!(".version 8.0\n.visible .entry k()\n{{\n.reg .b32 %r<4>;\n{line}\nret;\n}}\n");
        PtxModule::parse(&text).unwrap().check().unwrap_err().to_string()
    };
    assert_eq!(parse("tex.2d.v4.f32.s32 %r1, %r2;"), "PTX line 5: `tex.2d.v4.f32.s32` in `k`: `.2d` is not supported");
    assert!(parse("frobnicate.b32 %r1, %r2;").contains("PTX line 5: `frobnicate.b32`"));
    assert!(parse("add.u32 %r1, %r2;").contains("3 operands are needed"));
    assert!(parse("add.u64 %r1, %r2, %r3;").contains("`%r1` is B32, where B64 is needed"));
    assert!(parse("add.f16 %r1, %r2, %r3;").contains("PTX line 5"));
    assert!(parse("bra $nowhere;").contains("no label `$nowhere`"));
    assert!(parse("mov.u32 %r1, nothing;").contains("`nothing` is unknown"));
    assert!(parse("call.uni k, ();").contains("`k` is not a function"));
}

#[test]
fn an_unknown_instruction_affects_only_its_kernel() {
    let text = ".version 8.0\n.target sm_80\n.visible .entry bad()\n{\nfrobnicate.b32 5;\nret;\n}\n.visible .entry good()\n{\nret;\n}\n";
    let module = PtxModule::parse(text).unwrap();
    assert_eq!(module.entries().iter().map(|entry| entry.name()).collect::<Vec<_>>(), ["bad", "good"]);
    let mut device = EmulatedDevice::new();
    device.launch(&module, "good", [1; 3], [1; 3], 0, &[]).unwrap();
    let fault = device.launch(&module, "bad", [1; 3], [1; 3], 0, &[]).unwrap_err();
    assert_eq!((fault.kind, fault.ptx_line), (FaultKind::Unsupported, 5));
    assert!(fault.message.contains("`frobnicate.b32` in `bad`"), "{fault}");
}

#[test]
fn all_shipped_kernels_are_supported() {
    for text in [
        include_str!("../../../kernels/prebuilt/sm_80.ptx"),
        include_str!("../../../kernels/prebuilt/sm_90a.ptx"),
        include_str!("../../intrinsics/prebuilt/sm_80.ptx"),
        include_str!("../../intrinsics/prebuilt/sm_90a.ptx"),
    ] {
        let module = PtxModule::parse(text).unwrap();
        assert!(!module.entries().is_empty());
        module.check().unwrap();
    }
}

#[test]
fn wrong_launches() {
    let module = module("");
    let mut device = EmulatedDevice::new();
    let data = device.alloc(4);
    let mut launch = |entry: &str, block, shared, args: &[Arg]| {
        device.launch(&module, entry, [1; 3], block, shared, args).unwrap_err().message
    };
    assert!(launch("other", [1; 3], 0, &[]).contains("no such kernel"));
    assert!(launch("planted", [1; 3], 0, &[]).contains("0 arguments for 1 parameters"));
    assert!(launch("planted", [1; 3], 0, &[Arg::U32(1)]).contains("argument 0 has 4 bytes, but its parameter has 8"));
    assert!(launch("planted", [2048, 1, 1], 0, &[Arg::Ptr(data)]).contains("too large"));
    assert!(launch("planted", [0, 1, 1], 0, &[Arg::Ptr(data)]).contains("must not be empty"));
    assert!(launch("planted", [1; 3], 1 << 20, &[Arg::Ptr(data)]).contains("shared memory"));
}

#[test]
fn counts_by_line() {
    let report = right(64, "st.shared.u32 [%r3], %r1;\n.loc 1 43 1\nst.global.u32 [%rd2], %r1;\n");
    let line =
        |line| report.lines.iter().find(|counts| counts.file == "src/planted.rs" && counts.line == line).unwrap();
    assert_eq!((line(42).counts.wavefronts, line(42).counts.ideal_wavefronts), (2, 2));
    assert_eq!((line(43).counts.sectors, line(43).counts.global_bytes), (8, 256));
}
