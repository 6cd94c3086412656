//! What GPUs exchange, on several emulated devices that run in turns, and on one that exchanges with itself.

mod group;

use std::sync::atomic::Ordering;

use kernels::layout::VECTOR;
use launch::{DeviceBuffer, Graph, Result};
use workbench::number::{ProblemRng, Type};
use workbench::{Scale, cases};

use self::group::{Group, Way};
use crate::frame::gpu::{Gpu, TARGETS};

pub fn every_kernel(gpu: &mut Gpu) {
    for case in cases::all(Scale::Small) {
        if ["all_reduce", "all_reduce_two_shot", "gather_logits"].contains(&case.kernel) {
            gpu.run(&case);
        }
    }
}

/// Numbers of few digits, whose sums are exact in `f32`.
fn numbers(ty: Type, ranks: usize, len: usize, seed: u64) -> Vec<Vec<u16>> {
    let mut random = ProblemRng(seed);
    let mut number = || ty.bits((random.below(401) as f64 - 200.0) / 64.0);
    (0..ranks).map(|_| (0..len).map(|_| number()).collect()).collect()
}

/// The sums in `f64`, rounded once.
fn sums(ty: Type, numbers: &[Vec<u16>]) -> Vec<u16> {
    (0..numbers[0].len()).map(|i| ty.bits(numbers.iter().map(|of_one| ty.number(of_one[i])).sum())).collect()
}

/// Sums of so many vectors on so many devices.
#[derive(Clone, Copy, Debug)]
struct Sums {
    /// Which of the targets.
    target: usize,
    ty: Type,
    ranks: usize,
    two_shot: bool,
    vectors: usize,
    blocks: u32,
    seed: u64,
    way: Way,
}

/// Twice, they come out right and the same on all.
fn assert_sums(at: Sums) {
    let Sums { target, ty, ranks, two_shot, vectors, blocks, seed, way } = at;
    let group = Group::new(TARGETS[target].1, ty, ranks, seed, way);
    for round in 0..2 {
        let numbers = numbers(ty, ranks, vectors * VECTOR as usize, seed + round);
        let x = group.upload(&numbers);
        // The last first, and the first to wait is one that others wait for.
        for rank in (0..ranks).rev() {
            group.sum(rank, ty, two_shot, &x[rank], blocks).unwrap();
        }
        let found = group.download(&x).unwrap_or_else(|error| panic!("{at:?}: {error}"));
        let wanted = sums(ty, &numbers);
        assert!(found.iter().all(|of_one| *of_one == wanted), "{at:?}, round {round}");
    }
}

#[test]
fn sums_of_any_size_are_the_same_on_all_devices() {
    // From 16 bytes on; one block, several, and several chunks a block.
    let sizes = [(1, 16), (3, 16), (100, 4), (512, 16), (513, 16), (2500, 1), (5000, 2)];
    for (i, (vectors, blocks)) in sizes.into_iter().enumerate() {
        for (j, ranks) in [2, 4, 8].into_iter().enumerate() {
            for (k, two_shot) in [false, true].into_iter().enumerate() {
                let way = if (i + j + k) % 3 == 0 { Way::Host } else { Way::Peers };
                let (target, ty) = ((i + j) % 2, Type::ALL[(i + k) % 2]);
                assert_sums(Sums { target, ty, ranks, two_shot, vectors, blocks, seed: i as u64, way });
            }
        }
    }
}

#[test]
fn sums_hold_in_any_order_of_devices_warps_and_blocks() {
    let sums = |target, two_shot, seed, way| {
        let ty = Type::ALL[target];
        assert_sums(Sums { target, ty, ranks: 3, two_shot, vectors: 1500, blocks: 2, seed, way });
    };
    for seed in 1..7 {
        sums(0, false, seed, Way::Peers);
        sums(1, true, seed, Way::Peers);
    }
    for seed in 7..10 {
        sums(1, false, seed, Way::Host);
        sums(0, true, seed, Way::Host);
    }
}

#[test]
fn a_mebibyte_is_summed_up() {
    for (target, ranks, two_shot) in [(1, 2, false), (0, 4, true)] {
        let (ty, way) = (Type::ALL[1 - target], Way::Peers);
        assert_sums(Sums { target, ty, ranks, two_shot, vectors: 65_536, blocks: 16, seed: 1, way });
    }
}

#[test]
fn sums_are_rounded_once_and_in_the_order_of_the_ranks() {
    let ty = Type::F16;
    let mut random = ProblemRng(5);
    let numbers: Vec<Vec<u16>> = (0..4).map(|_| random.bits(ty, 256)).collect();
    let group = Group::new(TARGETS[1].1, ty, 4, 1, Way::Peers);
    let x = group.upload(&numbers);
    (0..4).for_each(|rank| group.sum(rank, ty, true, &x[rank], 1).unwrap());
    let in_order = |i: usize| numbers.iter().map(|of_one| ty.number(of_one[i]) as f32).reduce(|a, b| a + b).unwrap();
    let wanted: Vec<u16> = (0..256).map(|i| ty.bits(f64::from(in_order(i)))).collect();
    assert_eq!(group.download(&x).unwrap(), vec![wanted; 4]);
}

#[test]
fn all_exchanges_of_a_group_take_turns_and_recorded_ones_can_be_repeated() {
    let (ty, ranks) = (Type::F16, 2);
    for seed in 0..4 {
        let way = if seed < 3 { Way::Peers } else { Way::Host };
        let group = Group::new(TARGETS[1].1, ty, ranks, seed, way);
        let numbers = numbers(ty, ranks, 4200 * VECTOR as usize, seed);
        let x = group.upload(&numbers);
        let small = group.upload(&numbers.iter().map(|of_one| of_one[..80].to_vec()).collect::<Vec<_>>());
        let record = |rank: usize| {
            let captured = group.ranks[rank].stream.capture(|| {
                group.sum(rank, ty, false, &x[rank], 2)?;
                group.sum(rank, ty, true, &small[rank], 16)?;
                group.sum(rank, ty, true, &x[rank], 1)
            });
            captured.unwrap()
        };
        let graphs: Vec<Graph> = (0..ranks).map(record).collect();
        for _ in 0..2 {
            for (rank, graph) in graphs.iter().enumerate() {
                // SAFETY: all that was recorded lives.
                unsafe { graph.launch(&group.ranks[rank].stream) }.unwrap();
            }
        }
        // Each sum of two equal numbers doubles them.
        let doubled = |numbers: Vec<u16>, times: u32| -> Vec<u16> {
            numbers.into_iter().map(|bits| ty.bits(ty.number(bits) * f64::from(1 << times))).collect()
        };
        let wanted = doubled(sums(ty, &numbers), 3);
        assert_eq!(group.download(&x).unwrap(), vec![wanted.clone(); ranks], "seed {seed}");
        let of_small = doubled(sums(ty, &numbers)[..80].to_vec(), 1);
        assert_eq!(group.download(&small).unwrap(), vec![of_small; ranks], "seed {seed}");
    }
}

#[test]
fn logits_of_all_parts_of_the_vocabulary_come_to_the_first_rank() {
    for (seed, (ranks, rows, vocab)) in
        (0usize..).zip([(2usize, 3usize, 1001usize), (4, 1, 10), (3, 7, 4000), (8, 2, 97), (4, 40, 1603)])
    {
        let way = if seed % 3 == 1 { Way::Host } else { Way::Peers };
        let group = Group::new(TARGETS[seed % 2].1, Type::F16, ranks, seed as u64, way);
        let (each, stride) = (vocab.div_ceil(ranks), vocab.next_multiple_of(4));
        let logit = |row: usize, token: usize| (row * vocab + token) as f32;
        let part = |rank: usize| -> Vec<f32> {
            let columns = rank * each..(rank * each + each).min(vocab);
            let width = columns.len().next_multiple_of(4);
            let row = |row: usize| {
                let filled = columns.clone().map(move |token| logit(row, token)).chain(std::iter::repeat(-1.0));
                filled.take(width).collect::<Vec<_>>()
            };
            (0..rows).flat_map(row).collect()
        };
        let out = DeviceBuffer::from_slice(&group.ranks[0].stream, &vec![0u32; rows * stride]).unwrap().named("out");
        let parts: Vec<_> = group
            .ranks
            .iter()
            .enumerate()
            .map(|(i, r)| DeviceBuffer::from_slice(&r.stream, &part(i)).unwrap())
            .collect();
        for (rank, part) in parts.iter().enumerate() {
            group.gather(rank, part, &out, (rows as u32, vocab as u32));
        }
        group.ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
        let found = out.to_vec(&group.ranks[0].stream).unwrap();
        for (row, found) in found.chunks_exact(stride).enumerate() {
            let found: Vec<f32> = found[..vocab].iter().map(|&bits| f32::from_bits(bits)).collect();
            let wanted: Vec<f32> = (0..vocab).map(|token| logit(row, token)).collect();
            assert_eq!(found, wanted, "{ranks} ranks, row {row}");
        }
    }
}

/// Whether what is changed in the PTX of the kernels is noticed, in one of a few orders: a fault, or a wrong sum. What the
/// first fault said.
fn noticed(replace: &[(&str, &str)], two_shot: bool, vectors: usize, way: Way) -> Option<String> {
    let mut ptx = TARGETS[0].1.to_owned();
    for (from, to) in replace {
        assert!(ptx.contains(from), "{from} is not in the PTX");
        ptx = ptx.replace(from, to);
    }
    (0..12).find_map(|seed| {
        let (ty, ranks) = (Type::F16, 2);
        let group = Group::new(&ptx, ty, ranks, seed, way);
        let numbers = numbers(ty, ranks, vectors * VECTOR as usize, seed);
        let x = group.upload(&numbers);
        let launched: Result<()> = (0..ranks).try_for_each(|rank| group.sum(rank, ty, two_shot, &x[rank], 1));
        match launched.and_then(|()| group.download(&x)) {
            Err(error) => Some(error.to_string()),
            Ok(found) => found.iter().any(|of_one| *of_one != sums(ty, &numbers)).then(|| "a wrong sum".to_owned()),
        }
    })
}

#[test]
fn what_would_go_wrong_on_a_gpu_is_noticed() {
    for (two_shot, way) in [(false, Way::Peers), (true, Way::Peers), (false, Way::Host), (true, Way::Host)] {
        assert_eq!(noticed(&[], two_shot, 600, way), None);
        // Flags that order nothing beyond the own device, and flags that order nothing at all.
        for (strong, weak) in [
            ("st.release.sys.global.b32", "st.release.gpu.global.b32"),
            ("ld.acquire.sys.global.b32", "ld.acquire.gpu.global.b32"),
            ("st.release.sys.global.b32", "st.relaxed.sys.global.b32"),
            ("ld.acquire.sys.global.b32", "ld.relaxed.sys.global.b32"),
        ] {
            let said =
                noticed(&[(strong, weak)], two_shot, 600, way).unwrap_or_else(|| panic!("{weak}, {two_shot}, {way:?}"));
            assert!(said.contains("in kernel `all_reduce"), "{weak}: {said}");
        }
    }
}

#[test]
fn a_slot_that_is_used_again_too_early_is_noticed() {
    // One slot in place of two, for two chunks.
    let one_slot = [("36, 0, %p", "0, 0, %p"), ("0, 36, %p", "0, 0, %p")];
    for (two_shot, way) in [(false, Way::Peers), (true, Way::Peers), (false, Way::Host)] {
        assert!(noticed(&one_slot, two_shot, 4000, way).is_some(), "two shots: {two_shot}, {way:?}");
    }
}

#[test]
fn a_rank_that_never_arrives_is_a_fault_and_the_abort_word_releases_the_others() {
    let ty = Type::F16;
    let numbers = numbers(ty, 3, 64, 1);
    for way in [Way::Peers, Way::Host] {
        let group = Group::new(TARGETS[1].1, ty, 3, 1, way);
        let x = group.upload(&numbers);
        (0..2).for_each(|rank| group.sum(rank, ty, false, &x[rank], 1).unwrap());
        let fault = group.download(&x).unwrap_err().to_string();
        assert!(fault.contains("in kernel `all_reduce_f16`") && fault.contains("waits"), "{fault}");

        let group = Group::new(TARGETS[1].1, ty, 3, 1, way);
        let x = group.upload(&numbers);
        group.abort[0].store(1, Ordering::Release);
        for two_shot in [false, true] {
            (0..2).for_each(|rank| group.sum(rank, ty, two_shot, &x[rank], 1).unwrap());
        }
        group.download(&x).unwrap();
    }
}
