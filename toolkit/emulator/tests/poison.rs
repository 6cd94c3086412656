//! Poison: an uninitialised shared memory value that is a fault only where it is used.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};

/// Runs a kernel of one warp. `sm` has 512 bytes, and each lane has written word `lane`. `%r5` is the address of the
/// lane's word. The rest of `sm` is uninitialised. The result is in `%r2`.
fn run(poison: bool, body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64
         .func (.param .b32 r) same(.param .b32 a) {{ .reg .b32 %x; ld.param.u32 %x, [a]; st.param.u32 [r], %x; ret; }}
         .visible .entry k(.param .u64 out) {{
         .reg .b16 %h<8>; .reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .pred %p<8>;
         .shared .align 128 .b8 sm[512]; .local .align 8 .b8 lo[16]; .param .b32 arg; .param .b32 back;
         ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1;
         mov.u32 %r4, sm; mad.lo.u32 %r5, %r1, 4, %r4; st.shared.u32 [%r5], %r1; bar.warp.sync -1; mov.u32 %r2, 0;
         {body}
         st.global.u32 [%d2], %r2; ret; }}"
    );
    let module = PtxModule::parse(&text).unwrap();
    module.check().unwrap_or_else(|error| panic!("{error}"));
    let mut device = EmulatedDevice::new();
    let out = device.alloc_from("out", &[0; 128]);
    let options = LaunchOptions { poison, ..LaunchOptions::default() };
    device.launch_with(&options, &module, "k", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(out)])?;
    let bytes = device.read(out, 128).unwrap();
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Asserts that `body` runs with poison and is a fault without.
#[track_caller]
fn harmless(body: &str, expected: impl Fn(u32) -> u32) {
    let found = run(true, body).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(found, (0..32).map(expected).collect::<Vec<u32>>(), "{body}");
    let strict = run(false, body).unwrap_err();
    assert_eq!(strict.kind, FaultKind::Uninitialised, "{strict}");
}

#[track_caller]
fn caught(body: &str, how: &str, opcode: &str) {
    let fault = run(true, body).unwrap_err();
    assert_eq!((fault.kind, fault.opcode.as_str()), (FaultKind::Uninitialised, opcode), "{fault}");
    assert!(fault.message.contains(how) && fault.message.contains("that nothing wrote"), "{fault}");
}

/// Lanes from 16 on read uninitialised memory.
const READ: &str =
    "setp.ge.u32 %p1, %r1, 16; selp.b32 %r6, 256, 0, %p1; add.u32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6];";

#[test]
fn discarded_poison_is_harmless() {
    harmless(&format!("{READ} selp.b32 %r2, 7, %r7, %p1;"), |lane| if lane < 16 { lane } else { 7 });
    harmless(
        &format!("{READ} @%p1 mov.u32 %r7, 9; add.u32 %r2, %r7, 1;"),
        |lane| if lane < 16 { lane + 1 } else { 10 },
    );
    harmless(
        &format!("{READ} selp.b32 %r8, 0, -1, %p1; and.b32 %r2, %r7, %r8;"),
        |lane| if lane < 16 { lane } else { 0 },
    );
    harmless(
        &format!("{READ} setp.lt.u32 %p2, %r7, 8; not.pred %p3, %p1; and.pred %p2, %p2, %p3; selp.b32 %r2, 1, 2, %p2;"),
        |lane| if lane < 8 { 1 } else { 2 },
    );
    harmless(&format!("{READ} mov.u32 %r7, %r1; mov.u32 %r2, %r7;"), |lane| lane);
}

#[test]
fn using_poison_is_a_fault_that_names_its_source() {
    caught(&format!("{READ} mov.u32 %r2, %r7;"), "stores a value", "st.global.u32");
    let fault = run(true, &format!("{READ} mov.u32 %r2, %r7;")).unwrap_err();
    assert_eq!(fault.thread, Some([16, 0, 0]));
    assert!(fault.message.contains("at offset 0x140, in PTX line 10"), "{fault}");
    caught(
        &format!("{READ} cvt.u64.u32 %d3, %r7; add.u64 %d3, %d3, %d1; ld.global.u32 %r2, [%d3];"),
        "has an address",
        "ld.global.u32",
    );
    caught(
        &format!("{READ} and.b32 %r7, %r7, 124; add.u32 %r7, %r7, %r4; ld.shared.u32 %r2, [%r7];"),
        "has an address",
        "ld.shared.u32",
    );
    caught(&format!("{READ} setp.eq.u32 %p2, %r7, 3; @%p2 bra over; mov.u32 %r2, 1; over:"), "is guarded by", "bra");
    caught(
        &format!("{READ} setp.eq.u32 %p2, %r7, 3; @%p2 st.global.u32 [%d2], %r1;"),
        "is guarded by",
        "st.global.u32",
    );
    caught(&format!("{READ} red.global.add.u32 [%d2], %r7;"), "uses", "red.global.add.u32");
    caught(&format!("{READ} selp.b32 %r2, %r7, 7, %p1;"), "stores a value", "st.global.u32");
    caught(&format!("{READ} setp.eq.u32 %p2, %r7, 3; selp.b32 %r2, 1, 2, %p2;"), "stores a value", "st.global.u32");
    caught(&format!("{READ} setp.eq.u32 %p2, %r7, 3; @%p2 mov.u32 %r2, 5;"), "stores a value", "st.global.u32");
}

#[test]
fn poison_travels_through_memory_and_calls() {
    let through_shared =
        format!("{READ} st.shared.u32 [%r5+128], %r7; bar.warp.sync -1; ld.shared.u32 %r8, [%r5+128];");
    caught(&format!("{through_shared} mov.u32 %r2, %r8;"), "stores a value", "st.global.u32");
    harmless(&format!("{through_shared} selp.b32 %r2, 7, %r8, %p1;"), |lane| if lane < 16 { lane } else { 7 });
    let through_local = format!("{READ} st.local.u32 [lo+4], %r7; ld.local.u32 %r8, [lo+4];");
    caught(&format!("{through_local} mov.u32 %r2, %r8;"), "stores a value", "st.global.u32");
    harmless(&format!("{READ} st.local.u32 [lo], %r7; st.local.u32 [lo], %r1; ld.local.u32 %r2, [lo];"), |lane| lane);
    let through_call = format!("{READ} st.param.b32 [arg], %r7; call (back), same, (arg); ld.param.b32 %r8, [back];");
    caught(&format!("{through_call} mov.u32 %r2, %r8;"), "stores a value", "st.global.u32");
    harmless(&format!("{through_call} selp.b32 %r2, 7, %r8, %p1;"), |lane| if lane < 16 { lane } else { 7 });
    let packed = format!("{READ} mov.b64 %d3, {{%r1, %r7}}; mov.b64 {{%r8, %r9}}, %d3;");
    caught(&format!("{packed} mov.u32 %r2, %r9;"), "stores a value", "st.global.u32");
}

#[test]
fn shuffles_move_poison() {
    let shuffle = format!("{READ} shfl.sync.bfly.b32 %r8, %r7, 16, 31, -1;");
    // Now the lower lanes hold the poison.
    harmless(&format!("{shuffle} selp.b32 %r2, %r8, 7, %p1;"), |lane| if lane < 16 { 7 } else { lane - 16 });
    caught(&format!("{shuffle} selp.b32 %r2, 7, %r8, %p1;"), "stores a value", "st.global.u32");
    caught(&format!("{READ} redux.sync.add.u32 %r2, %r7, -1;"), "stores a value", "st.global.u32");
    caught(
        &format!("{READ} setp.eq.u32 %p2, %r7, 3; vote.sync.ballot.b32 %r2, %p2, -1;"),
        "stores a value",
        "st.global.u32",
    );
}

#[test]
fn products_poison_a_row_or_a_column() {
    let zeros: String = (10..20).map(|i| format!("mov.b32 %r{i}, 0;")).collect();
    let product =
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13},
        {%r14, %r15}, {%r16, %r17, %r18, %r19};";
    // Lane 4 holds a part of row 1 of the first factor and of column 1 of the second.
    let read = "setp.eq.u32 %p1, %r1, 4; selp.b32 %r6, 256, 0, %p1; add.u32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6];
        selp.b32 %r7, %r7, 0, %p1;";
    for (register, in_row, poisoned) in [("%r10", true, 1), ("%r11", true, 9), ("%r14", false, 1)] {
        for (result, down, right) in [("%r20", 0, 0), ("%r21", 0, 1), ("%r22", 8, 0)] {
            let is_poisoned = |lane: u32| {
                let (row, column) = (lane / 4 + down, lane % 4 * 2 + right);
                if in_row { row == poisoned } else { column == poisoned }
            };
            let safe: u32 = (0..32).filter(|&lane| !is_poisoned(lane)).fold(0, |set, lane| set | 1 << lane);
            let keep = |set: u32| {
                format!(
                    "{zeros} {read} mov.b32 {register}, %r7; {product} shr.u32 %r8, {set}, %r1; and.b32 %r8, %r8, 1;
                     setp.ne.u32 %p2, %r8, 0; selp.b32 %r2, {result}, 5, %p2;"
                )
            };
            harmless(&keep(safe), |lane| if is_poisoned(lane) { 5 } else { 0 });
            if safe != u32::MAX {
                caught(&keep(u32::MAX), "stores a value", "st.global.u32");
            }
        }
    }
    let load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6];";
    let rows = "mad.lo.u32 %r6, %r1, 16, %r4; setp.lt.u32 %p1, %r1, 4; @!%p1 add.u32 %r6, %r6, 128;";
    let kept = format!("{rows} {load} setp.lt.u32 %p2, %r1, 16; selp.b32 %r2, 1, %r7, %p2;");
    caught(&kept, "stores a value", "st.global.u32");
    harmless(&format!("{rows} {load} setp.ge.u32 %p2, %r1, 16; selp.b32 %r2, 1, %r7, %p2;"), |lane| {
        if lane < 16 { lane } else { 1 }
    });
}

#[test]
fn in_flight_and_unordered_reads_are_still_faults() {
    let flying = "cp.async.ca.shared.global [%r5+256], [%d2], 4; ld.shared.u32 %r7, [%r5+256]; cp.async.wait_all;";
    assert_eq!(run(true, flying).unwrap_err().kind, FaultKind::AsyncRegion);
    let fault =
        run(true, "xor.b32 %r6, %r5, 4; st.shared.u32 [%r5+128], %r1; ld.shared.u32 %r7, [%r6+128];").unwrap_err();
    assert_eq!(fault.kind, FaultKind::SharedRace, "{fault}");
    let fault = run(true, "atom.shared.add.u32 %r2, [%r5+256], 1;").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Uninitialised, "{fault}");
}
