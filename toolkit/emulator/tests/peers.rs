//! Several devices: launches that wait for each other, access to a peer's memory, and fence scopes.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[allow(dead_code, reason = "these tests need no clusters")]
mod host;

use emulator::driver::{self, DeviceOptions};
use emulator::{FaultKind, LaunchOptions};
use host::{Device, Word};
use std::thread;
use std::time::Duration;

/// In each round, a device stores 32 numbers, signals its peer through a flag, waits for the peer's flag, and adds the
/// peer's numbers to a sum. `peer_flag` is in the peer's memory, and the peer writes `own_flag`.
const EXCHANGE: &str = "
    .version 8.0
    .target sm_80
    .address_size 64
    .visible .entry exchange(.param .u64 own, .param .u64 peer, .param .u64 own_flag, .param .u64 peer_flag,
        .param .u64 sums, .param .u32 first, .param .u32 rounds, .param .u32 parities, .param .u64 stop) {
        .reg .pred %p<4>;
        .reg .b32 %r<20>;
        .reg .b64 %rd<20>;
        ld.param.u64 %rd1, [own];
        ld.param.u64 %rd2, [peer];
        ld.param.u64 %rd3, [own_flag];
        ld.param.u64 %rd4, [peer_flag];
        ld.param.u64 %rd5, [sums];
        ld.param.u64 %rd9, [stop];
        ld.param.u32 %r1, [first];
        ld.param.u32 %r2, [rounds];
        ld.param.u32 %r12, [parities];
        mov.u32 %r3, %tid.x;
        mul.wide.u32 %rd6, %r3, 4;
        add.u64 %rd5, %rd5, %rd6;
        mov.u32 %r4, 0;
        mov.u32 %r5, 0;
    again:
        // The numbers of a round are first * 1000 + round * 100 + lane, in one half of the buffer or the other.
        add.u32 %r4, %r4, 1;
        and.b32 %r13, %r4, %r12;
        mul.wide.u32 %rd10, %r13, 128;
        add.u64 %rd11, %rd1, %rd10;
        add.u64 %rd11, %rd11, %rd6;
        add.u64 %rd12, %rd2, %rd10;
        add.u64 %rd12, %rd12, %rd6;
        mul.lo.u32 %r6, %r1, 1000;
        mad.lo.u32 %r6, %r4, 100, %r6;
        add.u32 %r6, %r6, %r3;
        st.global.u32 [%rd11], %r6;
        bar.warp.sync 0xffffffff;
        RELEASE
        setp.ne.u32 %p1, %r3, 0;
        @%p1 bra wait;
        st.relaxed.sys.global.u32 [%rd4], %r4;
    wait:
        ld.relaxed.sys.global.u32 %r7, [%rd3];
        ld.volatile.global.u32 %r8, [%rd9];
        setp.ne.u32 %p3, %r8, 0;
        @%p3 bra done;
        setp.lt.u32 %p2, %r7, %r4;
        @%p2 bra wait;
        ACQUIRE
        ld.global.u32 %r9, [%rd12];
        add.u32 %r5, %r5, %r9;
        setp.lt.u32 %p2, %r4, %r2;
        @%p2 bra again;
    done:
        st.global.u32 [%rd5], %r5;
        ret;
    }";

/// One device's part of the exchange.
struct Rank {
    device: Device,
    kernel: host::Kernel,
    data: u64,
    flag: u64,
    sums: u64,
}

/// Two devices with access to each other, and the kernel with the given fences.
fn ranks(release: &str, acquire: &str, options: &LaunchOptions) -> [Rank; 2] {
    driver::configure(DeviceOptions { devices: 2, patience: Duration::from_secs(600), ..DeviceOptions::default() });
    let ptx = EXCHANGE.replace("RELEASE", release).replace("ACQUIRE", acquire);
    let ranks = [0, 1].map(|ordinal| {
        let device = Device::new(ordinal);
        driver::set_launch_options(options.clone()).unwrap();
        let kernel = device.kernel(&ptx, "exchange");
        let (data, flag, sums) = (device.zeros(256), device.zeros(4), device.zeros(128));
        Rank { device, kernel, data, flag, sums }
    });
    ranks[0].device.enable_peer(&ranks[1].device);
    ranks[1].device.enable_peer(&ranks[0].device);
    ranks
}

impl Rank {
    /// Queues the exchange with a peer for the given number of rounds.
    fn launch(&self, peer: &Rank, rounds: u32, parities: u32, stop: u64) {
        let args = [self.data, peer.data, self.flag, peer.flag, self.sums, self.device.ordinal as u64];
        let args = args.into_iter().chain([rounds.into(), parities.into(), stop]);
        self.device.launch(&self.kernel, &args.collect::<Vec<_>>(), &[8, 8, 8, 8, 8, 4, 4, 4, 8]);
    }
}

/// The sum of a lane after the given number of rounds with a peer.
fn expected(peer: u32, rounds: u32, lane: u32) -> u32 {
    (1..=rounds).map(|round| peer * 1000 + round * 100 + lane).sum()
}

const SYSTEM: &str = "fence.acq_rel.sys;";

fn seeded(seed: u64) -> LaunchOptions {
    LaunchOptions { seed, ..LaunchOptions::default() }
}

/// Whether both devices have the expected sums, or the fault of one of them.
fn outcome(ranks: &[Rank; 2], rounds: u32) -> Result<bool, Box<emulator::Fault>> {
    let mut correct = true;
    for (rank, peer) in [(0, 1), (1, 0)] {
        let Some(sums) = ranks[rank].device.words(ranks[rank].sums, 32) else {
            return Err(driver::take_fault().unwrap());
        };
        correct &= sums.iter().zip(0..).all(|(&sum, lane)| sum == expected(peer, rounds, lane));
    }
    Ok(correct)
}

#[test]
fn launches_that_wait_for_each_other_end() {
    for seed in 0..12 {
        let ranks = ranks(SYSTEM, SYSTEM, &seeded(seed));
        let stop = ranks[0].device.zeros(4);
        let stop = [stop, ranks[1].device.zeros(4)];
        for (own, peer) in [(0, 1), (1, 0)] {
            ranks[own].device.enter();
            ranks[own].launch(&ranks[peer], 5, 1, stop[own]);
        }
        assert_eq!(outcome(&ranks, 5), Ok(true), "seed {seed}");
    }
}

#[test]
fn two_threads_can_each_wait_for_their_device() {
    let ranks = ranks(SYSTEM, SYSTEM, &seeded(3));
    thread::scope(|scope| {
        for (own, peer) in [(0, 1), (1, 0)] {
            let ranks = &ranks;
            scope.spawn(move || {
                ranks[own].device.enter();
                let stop = ranks[own].device.zeros(4);
                ranks[own].launch(&ranks[peer], 20, 1, stop);
                assert!(ranks[own].device.words(ranks[own].sums, 32).is_some());
                host::leave();
            });
        }
    });
    assert_eq!(outcome(&ranks, 20), Ok(true));
}

/// Runs the exchange with insufficient fences and returns the fault.
fn with_fences(release: &str, acquire: &str) -> Box<emulator::Fault> {
    let ranks = ranks(release, acquire, &seeded(1));
    for (own, peer) in [(0, 1), (1, 0)] {
        ranks[own].device.enter();
        let stop = ranks[own].device.zeros(4);
        ranks[own].launch(&ranks[peer], 5, 1, stop);
    }
    outcome(&ranks, 5).unwrap_err()
}

#[test]
fn a_device_scope_fence_between_devices_is_a_race() {
    for (release, acquire) in
        [("fence.acq_rel.gpu;", SYSTEM), (SYSTEM, "fence.acq_rel.gpu;"), ("", SYSTEM), (SYSTEM, ""), ("membar.gl;", "")]
    {
        let fault = with_fences(release, acquire);
        assert_eq!(fault.kind, FaultKind::GlobalRace, "`{release}` and `{acquire}`: {fault}");
        assert!(fault.message.contains("of another launch, which was not over, wrote"), "{fault}");
        assert!(fault.device.is_some() && fault.to_string().contains("; device "), "{fault}");
    }
}

#[test]
fn some_order_finds_data_overwritten_too_early() {
    // With one buffer instead of two, nothing stops a device from overwriting its numbers in the next round.
    let found = (1..40).any(|seed| {
        let ranks = ranks(SYSTEM, SYSTEM, &seeded(seed));
        for (own, peer) in [(0, 1), (1, 0)] {
            ranks[own].device.enter();
            let stop = ranks[own].device.zeros(4);
            ranks[own].launch(&ranks[peer], 5, 0, stop);
        }
        outcome(&ranks, 5) != Ok(true)
    });
    assert!(found);
}

#[test]
fn waiting_for_a_device_that_never_arrives_is_a_deadlock() {
    let ranks = ranks(SYSTEM, SYSTEM, &LaunchOptions::default());
    ranks[0].device.enter();
    let stop = ranks[0].device.zeros(4);
    ranks[0].launch(&ranks[1], 1, 1, stop);
    assert_eq!(ranks[0].device.words(ranks[0].sums, 32), None);
    let fault = driver::take_fault().unwrap();
    assert_eq!((fault.kind, fault.device), (FaultKind::Deadlock, Some(0)), "{fault}");
    assert!(fault.opcode.starts_with("ld.") || fault.ptx_line != 0, "{fault}");
}

#[test]
fn the_host_can_end_a_wait() {
    let ranks = ranks(SYSTEM, SYSTEM, &LaunchOptions::default());
    ranks[0].device.enter();
    let stop = Word::new();
    ranks[0].launch(&ranks[1], 1, 1, stop.on_device());
    thread::scope(|scope| {
        // A thread with a current context could still queue work, so the wait is not a deadlock.
        let (attached, is_attached) = std::sync::mpsc::channel();
        let (ranks, word) = (&ranks, &stop);
        scope.spawn(move || {
            ranks[1].device.enter();
            attached.send(()).unwrap();
            word.set(1);
            host::leave();
        });
        is_attached.recv().unwrap();
        assert_eq!(ranks[0].device.words(ranks[0].sums, 32), Some(vec![0; 32]));
    });
}

#[test]
fn accessing_a_device_without_peer_access_is_a_fault() {
    let ranks = ranks(SYSTEM, SYSTEM, &LaunchOptions::default());
    ranks[0].device.enter();
    ranks[0].device.disable_peer(&ranks[1].device);
    let stop = ranks[0].device.zeros(4);
    ranks[0].launch(&ranks[1], 1, 1, stop);
    assert_eq!(ranks[0].device.words(ranks[0].sums, 32), None);
    let fault = driver::take_fault().unwrap();
    assert_eq!(fault.kind, FaultKind::OutOfBounds, "{fault}");
    assert!(fault.message.contains("of device 1, which device 0 has no access to as a peer"), "{fault}");
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let instructions = |seed| {
        let ranks = ranks(SYSTEM, SYSTEM, &seeded(seed));
        for rank in &ranks {
            rank.device.enter();
            driver::collect_reports(true).unwrap();
        }
        for (own, peer) in [(0, 1), (1, 0)] {
            ranks[own].device.enter();
            let stop = ranks[own].device.zeros(4);
            ranks[own].launch(&ranks[peer], 5, 1, stop);
        }
        assert_eq!(outcome(&ranks, 5), Ok(true));
        ranks.map(|rank| {
            rank.device.enter();
            driver::take_reports().unwrap().iter().map(|launch| launch.report.total.instructions).sum::<u64>()
        })
    };
    let orders: Vec<_> = (1..6).map(|seed| (instructions(seed), instructions(seed))).collect();
    assert!(orders.iter().all(|(first, second)| first == second), "{orders:?}");
    assert!(orders.windows(2).any(|pair| pair[0] != pair[1]), "{orders:?}");
}
