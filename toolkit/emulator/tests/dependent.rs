//! Dependent launches, which may begin before earlier launches end. Accesses that are too early are faults, and a wait
//! fixes them.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, DeviceAddress, EmulatedDevice, Fault, FaultKind, LaunchOptions, PtxModule};

const WAIT: &str = "griddepcontrol.wait;";
/// A thread reads or writes its word of the first buffer.
const READ: &str = "ld.global.u32 %r2, [%d1];";
const WRITE: &str = "st.global.u32 [%d1], %r1;";

/// A kernel in which `%d1` and `%d2` are the addresses of the thread's words in two buffers, and `%r1` is the thread's
/// index in the grid.
fn module(body: &str) -> PtxModule {
    PtxModule::parse(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 one, .param .u64 two)\n{{\n\
         .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<4>;\n.shared .align 128 .b8 tile[256]; .shared .align 8 .b64 full;\n\
         mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mul.lo.u32 %r0, %r0, %r1; mov.u32 %r1, %tid.x;\n\
         setp.ne.u32 %p0, %r1, 0; add.u32 %r1, %r1, %r0; mul.wide.u32 %d0, %r1, 4;\n\
         ld.param.u64 %d1, [one]; ld.param.u64 %d2, [two]; add.u64 %d1, %d1, %d0; add.u64 %d2, %d2, %d0;\n{body}\nret;\n}}\n"
    ))
    .unwrap()
}

/// Two buffers of 64 words, and launch options.
struct Launches {
    device: EmulatedDevice,
    buffers: [DeviceAddress; 2],
    options: LaunchOptions,
}

impl Launches {
    fn new(options: LaunchOptions) -> Self {
        let mut device = EmulatedDevice::new();
        let buffers = ["one", "two"].map(|name| device.alloc_from(name, &[0; 256]));
        Self { device, buffers, options }
    }

    /// Launches two blocks of 32 threads.
    fn launch(&mut self, dependent: bool, body: &str) -> Result<(), Box<Fault>> {
        let options = LaunchOptions { dependent, ..self.options.clone() };
        let args = self.buffers.map(Arg::Ptr);
        self.device.launch_with(&options, &module(body), "k", [2, 1, 1], [32, 1, 1], 0, &args).map(|_| ())
    }
}

/// Runs one ordinary launch followed by dependent ones, and returns the fault of the last launch. Asserts that several
/// orders agree.
fn last_fault(chain: &[&str]) -> Option<Box<Fault>> {
    let run = |seed| {
        let mut launches = Launches::new(LaunchOptions { seed, ..LaunchOptions::default() });
        let (last, others) = chain.split_last().unwrap();
        for (i, body) in others.iter().enumerate() {
            launches.launch(i != 0, body).unwrap_or_else(|fault| panic!("{fault}"));
        }
        launches.launch(!others.is_empty(), last).err()
    };
    let fault = run(0);
    (1..4).for_each(|seed| assert_eq!(run(seed).is_some(), fault.is_some(), "seed {seed}"));
    fault
}

#[track_caller]
fn caught(chain: &[&str], message: &str) {
    let fault = last_fault(chain).expect("a fault");
    assert_eq!(fault.kind, FaultKind::GlobalRace, "{fault}");
    assert!(fault.message.contains(message), "{fault}");
}

#[track_caller]
fn right(chain: &[&str]) {
    let fault = last_fault(chain);
    assert!(fault.is_none(), "{}", fault.unwrap());
}

#[test]
fn reading_an_earlier_write_needs_a_wait() {
    caught(&[WRITE, READ], "reads bytes of `one` in a dependent launch that a launch ahead of it wrote");
    caught(&[WRITE, &format!("{READ} {WAIT}")], "no griddepcontrol.wait between");
    right(&[WRITE, &format!("{WAIT} {READ}")]);
    // Memory that an earlier launch only read can be read at once.
    right(&[READ, READ]);
}

#[test]
fn writing_accessed_memory_needs_a_wait() {
    for ahead in [READ, WRITE] {
        caught(&[ahead, WRITE], "writes bytes of `one` in a dependent launch that a launch ahead of it accessed");
        right(&[ahead, &format!("{WAIT} {WRITE}")]);
    }
    right(&[READ, "st.global.u32 [%d2], %r1;"]);
}

#[test]
fn copies_and_atomics_need_a_wait_too() {
    let copy = "@%p0 bra $end; mov.u32 %r2, tile; cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.wait_all; $end:";
    let bulk = "@%p0 bra $end; mov.u32 %r2, tile; mov.u32 %r3, full; mbarrier.init.shared::cta.b64 [%r3], 1; \
                mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128; \
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r3]; \
                $spin: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra $spin; $end:";
    for (ahead, body) in [(WRITE, copy), (WRITE, bulk), (READ, "atom.global.add.u32 %r2, [%d1], 1;")] {
        caught(&[ahead, body], "`one` in a dependent launch");
        right(&[ahead, &format!("{WAIT} {body}")]);
    }
    let store = "@%p0 bra $end; mov.u32 %r2, tile; st.shared.u32 [%r2], 1; st.shared.u32 [%r2+4], 1; \
                 st.shared.u32 [%r2+8], 1; st.shared.u32 [%r2+12], 1; fence.proxy.async; \
                 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 16; cp.async.bulk.commit_group; \
                 cp.async.bulk.wait_group 0; $end:";
    caught(&[READ, store], "writes bytes of `one`");
    right(&[READ, &format!("{WAIT} {store}")]);
    // A bulk copy counts as a write by an earlier launch too.
    caught(&[store, READ], "reads bytes of `one`");
}

#[test]
fn the_wait_of_one_thread_covers_threads_ordered_after_it() {
    let wait = "@%p0 bra $all; griddepcontrol.wait; $all:";
    right(&[WRITE, &format!("{wait} bar.sync 0; {READ}")]);
    caught(&[WRITE, &format!("{wait} {READ}")], "no griddepcontrol.wait between");
    // Synchronisation from block to block through a flag.
    let flag = "mov.u32 %r3, %ctaid.x; setp.ne.u32 %p1, %r3, 0; ld.param.u64 %d3, [two]; @%p1 bra $spin; griddepcontrol.wait; \
                st.release.gpu.global.u32 [%d3], 1; bra $go; $spin: ld.acquire.gpu.global.u32 %r4, [%d3]; \
                setp.eq.u32 %p2, %r4, 0; @%p2 bra $spin; $go:";
    right(&[WRITE, &format!("{flag} {READ}")]);
}

#[test]
fn a_wait_covers_earlier_launches_only_if_all_of_them_waited() {
    let other = "st.global.u32 [%d2], %r1;";
    let waits = format!("{WAIT} {other}");
    // The third launch waits for the second, which has waited for the first.
    right(&[WRITE, &waits, &format!("{WAIT} {READ}")]);
    right(&[WRITE, WAIT, WAIT, &waits, &format!("{WAIT} {READ} {WRITE}")]);
    caught(&[WRITE, &waits, READ], "no griddepcontrol.wait between");
    // If the second launch never waited, the first may still be running, whatever the later ones wait for.
    caught(&[WRITE, other, &format!("{WAIT} {READ}")], "which never waited");
    caught(&[READ, other, &format!("{WAIT} {WRITE}")], "which never waited");
    caught(&[WRITE, other, WAIT, &format!("{WAIT} {READ}")], "which never waited");
    right(&[WRITE, other, &format!("{WAIT} ld.global.u32 %r2, [%d2];")]);
}

#[test]
fn an_ordinary_launch_follows_all_earlier_ones() {
    let mut launches = Launches::new(LaunchOptions::default());
    for (dependent, body) in [(false, WRITE), (true, "st.global.u32 [%d2], %r1;"), (false, READ), (true, READ)] {
        launches.launch(dependent, body).unwrap();
    }
    // In an ordinary launch the wait does nothing, and the next dependent launch must wait itself.
    launches.launch(false, &format!("{WAIT} {WRITE}")).unwrap();
    launches.launch(true, READ).unwrap_err();
}

#[test]
fn without_early_accesses_any_access_before_the_wait_is_a_fault() {
    for body in [READ, WRITE] {
        let mut launches = Launches::new(LaunchOptions { early_accesses: false, ..LaunchOptions::default() });
        launches.launch(true, &format!("{WAIT} {body}")).unwrap();
        launches.launch(false, body).unwrap();
        let fault = launches.launch(true, body).unwrap_err();
        assert!(
            fault.kind == FaultKind::GlobalRace && fault.message.contains("no griddepcontrol.wait before"),
            "{fault}"
        );
    }
}

#[test]
fn constant_buffers_may_be_read_early() {
    let options = LaunchOptions { early_accesses: false, early_reads: &["one"], ..LaunchOptions::default() };
    let on_second = |body: &str| body.replace("%d1", "%d2");
    let mut launches = Launches::new(options);
    launches.launch(true, READ).unwrap();
    launches.launch(true, &format!("{READ} {WAIT} {}", on_second(WRITE))).unwrap();
    for body in [WRITE, &on_second(READ), &on_second(WRITE)] {
        let fault = launches.launch(true, body).unwrap_err();
        assert!(fault.message.contains("no griddepcontrol.wait before"), "{fault}");
    }
    // If a launch does write the buffer, the usual rules apply.
    launches.launch(false, WRITE).unwrap();
    let fault = launches.launch(true, READ).unwrap_err();
    assert!(fault.message.contains("that a launch ahead of it wrote"), "{fault}");
}

#[test]
fn writes_on_several_cores_are_tracked() {
    let long = "mov.u32 %r0, 1000; $again: sub.u32 %r0, %r0, 1; setp.ne.u32 %p1, %r0, 0; @%p1 bra $again;";
    for cores in [1, 4] {
        let mut device = EmulatedDevice::new();
        let [one, two] = ["one", "two"].map(|name| device.alloc_from(name, &[0; 400 * 128]));
        let mut launch = |dependent, body: &str, first_word: u64| {
            let options = LaunchOptions { cores, dependent, ..LaunchOptions::default() };
            let (grid, args) = (if dependent { 1 } else { 400 }, [Arg::Ptr(one + 4 * first_word), Arg::Ptr(two)]);
            device.launch_with(&options, &module(body), "k", [grid, 1, 1], [32, 1, 1], 0, &args)
        };
        for block in [0, 20, 399] {
            launch(false, &format!("{long} {WRITE}"), 0).unwrap();
            launch(true, READ, 32 * block).unwrap_err();
        }
    }
}

#[test]
fn a_failed_launch_counts_as_over() {
    let mut launches = Launches::new(LaunchOptions::default());
    let fault = launches.launch(false, &format!("{WRITE} trap;")).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Trap, "{fault}");
    launches.launch(true, READ).unwrap_or_else(|fault| panic!("{fault}"));
    // A dependent launch also counts as over once it has failed, and so does everything before it.
    launches.launch(true, &format!("{WAIT} {WRITE}")).unwrap_or_else(|fault| panic!("{fault}"));
    launches.launch(true, READ).expect_err("a read before the wait");
    launches.launch(true, READ).unwrap_or_else(|fault| panic!("{fault}"));
    // Launches after the fault are checked as usual.
    launches.launch(false, WRITE).unwrap_or_else(|fault| panic!("{fault}"));
    launches.launch(true, READ).expect_err("a read before the wait");
}
