//! Calls through pointers, recursion, and `malloc` in kernels.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, Fault, FaultKind, PtxModule};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Runs one warp. `body` gets the lane index in `%r1` and leaves its result in `%r2`.
fn run(functions: &str, body: &str) -> Result<Vec<u32>, Box<Fault>> {
    let text = format!(
        "{HEAD}{functions}
         .visible .entry k(.param .u64 out) {{
         .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .pred %p<4>;
         .param .b32 arg; .param .b32 back;
         proto: .callprototype (.param .b32 _) _ (.param .b32 _);
         ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d1, %r1, 4, %d1;
         {body}
         st.global.u32 [%d1], %r2; ret; }}"
    );
    let module = PtxModule::parse(&text).unwrap();
    module.check().unwrap_or_else(|error| panic!("{error}"));
    let mut device = EmulatedDevice::new();
    let out = device.alloc(128);
    device.launch(&module, "k", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(out)])?;
    let bytes = device.read(out, 128).unwrap();
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

fn one(name: &str, instruction: &str) -> String {
    format!(
        ".func (.param .b32 r) {name}(.param .b32 a) {{ .reg .b32 %x<4>; ld.param.u32 %x1, [a];
         {instruction} st.param.u32 [r], %x2; ret; }}\n"
    )
}

/// Three functions, one with a different signature, and a table of all four.
fn functions() -> String {
    [
        one("twice", "add.u32 %x2, %x1, %x1;"),
        one("square", "mul.lo.u32 %x2, %x1, %x1;"),
        one("less", "sub.u32 %x2, %x1, 1;"),
        ".func other(.param .b64 a) { ret; }\n".to_string(),
        ".global .align 8 .u64 table[4] = {twice, square, less, other};\n".to_string(),
    ]
    .concat()
}

const CALL: &str = "st.param.b32 [arg], %r1; call (back), %d3, (arg), proto; ld.param.b32 %r2, [back];";

#[test]
fn each_lane_calls_the_function_that_its_pointer_names() {
    let by_table = format!(
        "rem.u32 %r3, %r1, 3; mov.u64 %d2, table; mad.wide.u32 %d2, %r3, 8, %d2; ld.global.u64 %d3, [%d2]; {CALL}"
    );
    let expected = |lane: u32| match lane % 3 {
        0 => lane * 2,
        1 => lane * lane,
        _ => lane - 1,
    };
    assert_eq!(run(&functions(), &by_table).unwrap(), (0..32).map(expected).collect::<Vec<u32>>());
    // A call by name, under a guard.
    let by_name = format!("mov.u64 %d3, square; mov.u32 %r2, 7; setp.lt.u32 %p1, %r1, 5; {CALL}")
        .replace("call (back)", "@%p1 call (back)")
        .replace("ld.param.b32 %r2", "@%p1 ld.param.b32 %r2");
    let expected = |lane: u32| if lane < 5 { lane * lane } else { 7 };
    assert_eq!(run(&functions(), &by_name).unwrap(), (0..32).map(expected).collect::<Vec<u32>>());
    let listed = format!("list: .calltargets less, twice; mov.u64 %d3, twice; {}", CALL.replace("proto", "list"));
    assert_eq!(run(&functions(), &listed).unwrap()[9], 18);
}

#[test]
fn a_call_through_a_wrong_pointer_is_a_fault() {
    for (pointer, why) in [
        ("mov.u64 %d3, 4096;", "0x1000, which is not a function"),
        ("mov.u64 %d3, other;", "not a function with these parameters"),
        ("mov.u64 %d3, square; add.u64 %d3, %d3, 1;", "not a function"),
    ] {
        let fault = run(&functions(), &format!("{pointer} {CALL}")).unwrap_err();
        assert_eq!((fault.kind, fault.opcode.as_str()), (FaultKind::OutOfBounds, "call"), "{fault}");
        assert!(fault.message.contains(why), "{fault}");
    }
    let listed = format!("list: .calltargets less, twice; mov.u64 %d3, square; {}", CALL.replace("proto", "list"));
    assert!(run(&functions(), &listed).is_err());
    let text = format!("{HEAD}.visible .entry k() {{ .reg .b64 %d<2>; mov.u64 %d1, 0; call %d1, (); ret; }}");
    let error = PtxModule::parse(&text).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("needs a prototype"), "{error}");
}

/// fib(n) keeps n and fib(n - 1) in registers across its recursive calls.
const FIB: &str = ".func (.param .b32 r) fib(.param .b32 n) {
    .reg .b32 %x<8>; .reg .pred %q<2>; .param .b32 sent; .param .b32 got;
    ld.param.u32 %x1, [n]; mov.u32 %x2, %x1; setp.lt.u32 %q1, %x1, 2; @%q1 bra done;
    sub.u32 %x3, %x1, 1; st.param.b32 [sent], %x3; call (got), fib, (sent); ld.param.b32 %x4, [got];
    sub.u32 %x3, %x1, 2; st.param.b32 [sent], %x3; call (got), fib, (sent); ld.param.b32 %x5, [got];
    add.u32 %x2, %x4, %x5;
    done: st.param.b32 [r], %x2; ret; }\n";

#[test]
fn functions_call_themselves_to_each_lanes_depth() {
    let call = "rem.u32 %r3, %r1, 13; st.param.b32 [arg], %r3; call (back), fib, (arg); ld.param.b32 %r2, [back];";
    let fib = |n: u32| (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    assert_eq!(run(FIB, call).unwrap(), (0..32).map(|lane| fib(lane % 13)).collect::<Vec<u32>>());
    // Recursion through a pointer.
    let pointer = FIB
        .replace(
            ".reg .pred %q<2>;",
            ".reg .pred %q<2>; .reg .b64 %y; p: .callprototype (.param .b32 _) _ (.param .b32 _);",
        )
        .replace("call (got), fib, (sent)", "mov.u64 %y, fib; call (got), %y, (sent), p");
    assert_eq!(run(&pointer, call).unwrap(), (0..32).map(|lane| fib(lane % 13)).collect::<Vec<u32>>());
}

#[test]
fn each_call_has_its_own_local_variables() {
    // walk(n, p) stores n in a local variable, passes the variable's address on, and adds the value at its caller's
    // address.
    let walk = ".func (.param .b32 r) walk(.param .b32 n, .param .b64 p) {
        .reg .b32 %x<8>; .reg .b64 %y<8>; .reg .pred %q<2>; .local .align 8 .b8 own[8];
        .param .b32 sent; .param .b64 place; .param .b32 got;
        ld.param.u32 %x1, [n]; ld.param.u64 %y1, [p]; mov.u64 %y2, own; cvta.local.u64 %y3, %y2;
        st.local.u32 [%y2], %x1; ld.u32 %x2, [%y1]; mov.u32 %x5, %x2; setp.eq.u32 %q1, %x1, 0; @%q1 bra done;
        sub.u32 %x3, %x1, 1; st.param.b32 [sent], %x3; st.param.b64 [place], %y3;
        call (got), walk, (sent, place); ld.param.b32 %x4, [got];
        // The variable still holds n: no deeper call has changed it.
        ld.local.u32 %x6, [own]; sub.u32 %x6, %x6, %x1; mad.lo.u32 %x4, %x6, 1000, %x4;
        add.u32 %x5, %x4, %x2;
        done: st.param.b32 [r], %x5; ret; }\n";
    let body = ".param .b64 start; .local .align 4 .b8 first[4]; st.local.u32 [first], 100;
        mov.u64 %d4, first; cvta.local.u64 %d4, %d4; and.b32 %r3, %r1, 7;
        st.param.b32 [arg], %r3; st.param.b64 [start], %d4; call (back), walk, (arg, start); ld.param.b32 %r2, [back];";
    let expected = |lane: u32| 100 + (1..=lane % 8).sum::<u32>();
    assert_eq!(run(walk, body).unwrap(), (0..32).map(expected).collect::<Vec<u32>>());
}

#[test]
fn endless_recursion_is_a_fault() {
    let endless = ".func down() { .reg .b32 %x<2>; call down, (); ret; }\n";
    let fault = run(endless, "call down, (); mov.u32 %r2, 0;").unwrap_err();
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
    assert!(fault.message.contains("recursion without an end"), "{fault}");
}

/// Every second lane allocates memory, stores its index there, and runs `then` with the pointer in `%d2`.
fn with_memory(then: &str) -> Result<Vec<u32>, Box<Fault>> {
    let functions = ".extern .func (.param .b64 p) malloc(.param .b64 n);\n.extern .func free(.param .b64 p);\n";
    let body = format!(
        ".param .b64 size; .param .b64 got; .param .b64 given; mov.u32 %r2, 77; and.b32 %r3, %r1, 1;
         setp.ne.u32 %p1, %r3, 0; @%p1 bra done; mov.u64 %d3, 4; st.param.b64 [size], %d3;
         call.uni (got), malloc, (size); ld.param.b64 %d2, [got];
         st.u32 [%d2], %r1; bar.warp.sync 0x55555555; ld.u32 %r2, [%d2]; {then} done:"
    );
    run(functions, &body)
}

#[test]
fn threads_get_memory_of_their_own() {
    let freed = "st.param.b64 [given], %d2; call.uni free, (given);";
    let results = with_memory(freed).unwrap();
    assert!(results.iter().enumerate().all(|(lane, &result)| result == if lane % 2 == 0 { lane as u32 } else { 77 }));
    // Freeing address 0 does nothing.
    assert!(with_memory("mov.u64 %d3, 0; st.param.b64 [given], %d3; call.uni free, (given);").is_ok());
    let wrong = [
        ("ld.u32 %r3, [%d2+4];".to_owned(), "offset 4 of `memory from malloc`, which has 4 bytes"),
        (freed.to_owned() + "ld.u32 %r3, [%d2];", "in `memory from malloc`, which was freed"),
        (freed.to_owned() + freed, "in `memory from malloc`, which was freed"),
        (format!("mov.u64 %d2, %d1; {freed}"), "which is not the beginning of memory from malloc"),
    ];
    for (then, message) in wrong {
        let fault = with_memory(&then).unwrap_err();
        assert!(fault.kind == FaultKind::OutOfBounds && fault.message.contains(message), "{fault}");
    }
}
