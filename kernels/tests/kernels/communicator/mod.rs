//! Exchanges between GPUs: several emulated devices that take turns, and one device that exchanges with itself.

mod norm;
mod sums;

use std::sync::atomic::Ordering;

use kernels::communicator::{ExchangeShape, shots};
use kernels::layout::VECTOR;
use launch::{DeviceBuffer, Graph, Result};
use workbench::LinkBytes;
use workbench::group::{DeviceGroup, GroupSum, MailboxPlace};
use workbench::number::{ProblemRng, Type};

use crate::frame::gpu::TARGETS;

/// Numbers of few digits, whose sums are exact in `f32`.
fn numbers(ty: Type, ranks: usize, len: usize, seed: u64) -> Vec<Vec<u16>> {
    let mut random = ProblemRng(seed);
    let mut number = || ty.bits((random.below(401) as f64 - 200.0) / 64.0);
    (0..ranks).map(|_| (0..len).map(|_| number()).collect()).collect()
}

/// Returns the sums in `f64`, rounded once.
fn sums(ty: Type, numbers: &[Vec<u16>]) -> Vec<u16> {
    (0..numbers[0].len()).map(|i| ty.bits(numbers.iter().map(|of_one| ty.number(of_one[i])).sum())).collect()
}

/// A plain sum of all of `x`, in a grid for devices that run `blocks` blocks.
fn plain(x: &DeviceBuffer<u16>, shots: u32, blocks: u32) -> GroupSum<'_> {
    GroupSum { x, part: None, shots, norm: None, shape: ExchangeShape::of_sum(x.len() as u32, blocks) }
}

#[test]
fn all_exchanges_of_a_group_take_turns_and_recorded_ones_can_be_repeated() {
    let (ty, ranks) = (Type::F16, 2);
    for seed in 0..4 {
        let place = if seed < 3 { MailboxPlace::Devices } else { MailboxPlace::Host };
        let group = DeviceGroup::new(TARGETS[1].1, ty, ranks, seed, place).unwrap();
        let numbers = numbers(ty, ranks, 4200 * VECTOR as usize, seed);
        let x = group.upload("x", &numbers).unwrap();
        let small: Vec<_> = numbers.iter().map(|of_one| of_one[..80].to_vec()).collect();
        let small = group.upload("small", &small).unwrap();
        let record = |rank: usize| {
            let captured = group.devices[rank].stream.capture(|| {
                group.sum(rank, plain(&x[rank], 1, 2))?;
                group.sum(rank, plain(&small[rank], 2, 16))?;
                group.sum(rank, plain(&x[rank], 2, 1))
            });
            captured.unwrap()
        };
        let graphs: Vec<Graph> = (0..ranks).map(record).collect();
        for _ in 0..2 {
            for (rank, graph) in graphs.iter().enumerate() {
                // SAFETY: everything that was recorded is still alive.
                unsafe { graph.launch(&group.devices[rank].stream) }.unwrap();
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
fn the_first_rank_gets_the_logits_of_the_whole_vocabulary() {
    for (seed, (ranks, rows, vocab)) in
        (0usize..).zip([(2usize, 3usize, 1001usize), (4, 1, 10), (3, 7, 4000), (8, 2, 97), (4, 40, 1603)])
    {
        let place = if seed % 3 == 1 { MailboxPlace::Host } else { MailboxPlace::Devices };
        let group = DeviceGroup::new(TARGETS[seed % 2].1, Type::F16, ranks, seed as u64, place).unwrap();
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
        let out = DeviceBuffer::from_slice(&group.devices[0].stream, &vec![0u32; rows * stride]).unwrap().named("out");
        let parts: Vec<_> = group
            .devices
            .iter()
            .enumerate()
            .map(|(i, r)| DeviceBuffer::from_slice(&r.stream, &part(i)).unwrap())
            .collect();
        for (rank, part) in parts.iter().enumerate() {
            group.gather(rank, part, &out, (rows as u32, vocab as u32)).unwrap();
        }
        group.devices.iter().for_each(|device| device.stream.synchronize().unwrap());
        let found = out.to_vec(&group.devices[0].stream).unwrap();
        for (row, found) in found.chunks_exact(stride).enumerate() {
            let found: Vec<f32> = found[..vocab].iter().map(|&bits| f32::from_bits(bits)).collect();
            let wanted: Vec<f32> = (0..vocab).map(|token| logit(row, token)).collect();
            assert_eq!(found, wanted, "{ranks} ranks, row {row}");
        }
    }
}

/// Replaces text in the PTX of the kernels and runs sums in a few orders. Returns the first fault's message or "a wrong
/// sum", or `None` if all orders succeed.
fn noticed(replace: &[(&str, &str)], shots: u32, vectors: usize, place: MailboxPlace) -> Option<String> {
    let mut ptx = TARGETS[0].1.to_owned();
    for (from, to) in replace {
        assert!(ptx.contains(from), "{from} is not in the PTX");
        ptx = ptx.replace(from, to);
    }
    (0..12).find_map(|seed| {
        let (ty, ranks) = (Type::F16, 2);
        let group = DeviceGroup::new(&ptx, ty, ranks, seed, place).unwrap();
        let numbers = numbers(ty, ranks, vectors * VECTOR as usize, seed);
        let x = group.upload("x", &numbers).unwrap();
        let launched: Result<()> = (0..ranks).try_for_each(|rank| group.sum(rank, plain(&x[rank], shots, 1)));
        match launched.and_then(|()| group.download(&x)) {
            Err(error) => Some(error.to_string()),
            Ok(found) => found.iter().any(|of_one| *of_one != sums(ty, &numbers)).then(|| "a wrong sum".to_owned()),
        }
    })
}

#[test]
fn weak_flags_are_noticed() {
    for (shots, place) in
        [(1, MailboxPlace::Devices), (2, MailboxPlace::Devices), (1, MailboxPlace::Host), (2, MailboxPlace::Host)]
    {
        assert_eq!(noticed(&[], shots, 600, place), None);
        // Flags that order nothing beyond their own device, and flags that order nothing at all.
        for (strong, weak) in [
            ("st.release.sys.global.b32", "st.release.gpu.global.b32"),
            ("ld.acquire.sys.global.b32", "ld.acquire.gpu.global.b32"),
            ("st.release.sys.global.b32", "st.relaxed.sys.global.b32"),
            ("ld.acquire.sys.global.b32", "ld.relaxed.sys.global.b32"),
        ] {
            let said = noticed(&[(strong, weak)], shots, 600, place);
            let said = said.unwrap_or_else(|| panic!("{weak}, {shots} shots, {place:?}"));
            assert!(said.contains("in kernel `all_reduce"), "{weak}: {said}");
        }
    }
}

#[test]
fn a_slot_that_is_used_again_too_early_is_noticed() {
    // One slot instead of two, for two chunks.
    let one_slot = [("36, 0, %p", "0, 0, %p")];
    for (shots, place) in [(1, MailboxPlace::Devices), (2, MailboxPlace::Devices), (1, MailboxPlace::Host)] {
        assert!(noticed(&one_slot, shots, 4000, place).is_some(), "{shots} shots, {place:?}");
    }
}

#[test]
fn a_rank_that_never_arrives_is_a_fault_and_the_abort_word_releases_the_others() {
    let ty = Type::F16;
    let numbers = numbers(ty, 3, 64, 1);
    for place in [MailboxPlace::Devices, MailboxPlace::Host] {
        let group = DeviceGroup::new(TARGETS[1].1, ty, 3, 1, place).unwrap();
        let x = group.upload("x", &numbers).unwrap();
        (0..2).for_each(|rank| group.sum(rank, plain(&x[rank], 1, 1)).unwrap());
        let fault = group.download(&x).unwrap_err().to_string();
        assert!(fault.contains("in kernel `all_reduce_f16`") && fault.contains("waits"), "{fault}");

        let group = DeviceGroup::new(TARGETS[1].1, ty, 3, 1, place).unwrap();
        let x = group.upload("x", &numbers).unwrap();
        group.abort[0].store(1, Ordering::Release);
        for shots in [1, 2] {
            (0..2).for_each(|rank| group.sum(rank, plain(&x[rank], shots, 1)).unwrap());
        }
        group.download(&x).unwrap();
    }
}

#[test]
fn no_more_goes_over_the_links_than_must_beside_the_flags() {
    let bytes = 64 << 10;
    for ranks in [2, 4, 8] {
        for shots in [1, 2] {
            let LinkBytes { moved, floor, .. } = LinkBytes::count(TARGETS[1].1, ranks, shots, bytes).unwrap();
            // In an exchange a block writes a flag to each peer, a sector each.
            let shape = ExchangeShape::of_sum(bytes as u32 / 2, 16);
            let flags = 32 * u64::from(shape.launch.grid[0] * shots) * (ranks as u64 - 1);
            assert_eq!(moved, floor + flags, "{ranks} ranks, {shots} shots");
        }
    }
    assert_eq!([shots(2, 1 << 20), shots(4, 1 << 20)], [1, 2]);
}
