//! Sums of any size, in any order.

use kernels::communicator::CAPACITY;

use super::*;

/// Target, ranks and bytes of large sums.
const LARGE: [(usize, usize, usize); 4] = [(1, 2, 4 << 20), (0, 4, 2 << 20), (1, 8, 1 << 20), (0, 2, 16 << 20)];

/// Sums of `vectors` vectors on `ranks` devices.
#[derive(Clone, Copy, Debug)]
struct Sums {
    /// Index of the target.
    target: usize,
    ty: Type,
    ranks: usize,
    shots: u32,
    vectors: usize,
    shape: ExchangeShape,
    seed: u64,
    place: MailboxPlace,
}

/// Asserts that the sums are right and the same on all devices, in two rounds.
fn assert_sums(at: Sums) {
    let Sums { target, ty, ranks, shots, vectors, shape, seed, place } = at;
    let group = DeviceGroup::new(TARGETS[target].1, ty, ranks, seed, place).unwrap();
    for round in 0..2 {
        let numbers = numbers(ty, ranks, vectors * VECTOR as usize, seed + round);
        let x = group.upload("x", &numbers).unwrap();
        // The last rank launches first. The first rank to wait is then one that others wait for.
        for rank in (0..ranks).rev() {
            group.sum(rank, GroupSum { shape, ..plain(&x[rank], shots, 1) }).unwrap();
        }
        let found = group.download(&x).unwrap_or_else(|error| panic!("{at:?}: {error}"));
        let wanted = sums(ty, &numbers);
        assert!(found.iter().all(|of_one| *of_one == wanted), "{at:?}, round {round}");
    }
}

#[test]
fn sums_of_any_size_are_the_same_on_all_devices() {
    // From 16 bytes on, in one block, in several, and with several chunks a block.
    let sizes = [(1, 16), (3, 16), (100, 4), (512, 16), (513, 16), (2500, 1), (5000, 2)];
    for (i, (vectors, blocks)) in sizes.into_iter().enumerate() {
        for (j, ranks) in [2, 4, 8].into_iter().enumerate() {
            // With many devices a size has one number of shots, and the other sizes have the other.
            let every = if ranks == 2 { vec![1, 2] } else { vec![1 + ((i / 2 + j) % 2) as u32] };
            for shots in every {
                let place =
                    if (i + j + shots as usize).is_multiple_of(3) { MailboxPlace::Host } else { MailboxPlace::Devices };
                let (target, ty) = ((i + j) % 2, Type::ALL[(i + shots as usize) % 2]);
                let shape = ExchangeShape::of_sum(vectors as u32 * VECTOR, blocks);
                assert_sums(Sums { target, ty, ranks, shots, vectors, shape, seed: i as u64, place });
            }
        }
    }
}

#[test]
fn sums_hold_in_any_order_of_devices_warps_and_blocks() {
    let sums = |target, shots, seed, place| {
        let shape = ExchangeShape::of_sum(1500 * VECTOR, 2);
        assert_sums(Sums { target, ty: Type::ALL[target], ranks: 3, shots, vectors: 1500, shape, seed, place });
    };
    for seed in 1..7 {
        sums(0, 1, seed, MailboxPlace::Devices);
        sums(1, 2, seed, MailboxPlace::Devices);
    }
    for seed in 7..10 {
        sums(1, 1, seed, MailboxPlace::Host);
        sums(0, 2, seed, MailboxPlace::Host);
    }
}

/// As many chunks a block as 64 MiB need on devices of 16 multiprocessors: 128, here in chunks of 32 vectors.
#[test]
fn sums_of_many_chunks_take_turns_at_the_slots() {
    let most = ExchangeShape::of_sum((64 << 20) / 2, 16);
    assert_eq!((most.launch.grid[0], most.chunk, (64 << 20) / (16 * 16 * most.chunk)), (16, CAPACITY, 128));
    for (i, ranks) in [2, 4, 8].into_iter().enumerate() {
        for shots in [1, 2] {
            let blocks = if ranks == 8 { 1 } else { 2 };
            // The last chunk is not full.
            let vectors = 32 * 128 * blocks as usize - 5;
            let shape = ExchangeShape { chunk: 32, ..ExchangeShape::of_sum(32 * VECTOR, 1) };
            let shape = ExchangeShape { launch: cuda_std::launch::LaunchShape::linear(blocks, 32), ..shape };
            let (target, ty, place) = (i % 2, Type::ALL[(i + 1) % 2], MailboxPlace::Devices);
            assert_sums(Sums { target, ty, ranks, shots, vectors, shape, seed: 3, place });
        }
    }
}

#[test]
fn large_sums_are_made_as_the_engine_makes_them() {
    for (target, ranks, bytes) in LARGE {
        let (ty, place) = (Type::ALL[1 - target], MailboxPlace::Devices);
        let shape = ExchangeShape::of_sum(bytes as u32 / 2, 16);
        let (shots, vectors) = (shots(ranks as u32, bytes as u64), bytes / 16);
        assert_sums(Sums { target, ty, ranks, shots, vectors, shape, seed: 1, place });
    }
}

/// Sums of 64 MiB, each in a different order. They take minutes, so they are run by hand, and `BENCHMARKS.md` has the
/// results. All other sums are at most as large as those in [`LARGE`].
///
///     cargo test -p kernels --test kernels -- --ignored --nocapture sums_of_64_mib
#[test]
#[ignore = "takes minutes"]
fn sums_of_64_mib_hold() {
    for (seed, ranks) in [2, 4, 8].into_iter().enumerate() {
        let (bytes, ty, place) = (64 << 20, Type::ALL[seed % 2], MailboxPlace::Devices);
        let shape = ExchangeShape::of_sum(bytes as u32 / 2, 16);
        let (target, shots, vectors) = (seed % 2, shots(ranks as u32, bytes as u64), bytes / 16);
        assert_sums(Sums { target, ty, ranks, shots, vectors, shape, seed: seed as u64, place });
        println!("64 MiB on {ranks} devices in {shots} exchanges, twice");
    }
}

#[test]
fn sums_are_rounded_once_and_in_the_order_of_the_ranks() {
    let ty = Type::F16;
    let mut random = ProblemRng(5);
    let numbers: Vec<Vec<u16>> = (0..4).map(|_| random.bits(ty, 256)).collect();
    let group = DeviceGroup::new(TARGETS[1].1, ty, 4, 1, MailboxPlace::Devices).unwrap();
    let x = group.upload("x", &numbers).unwrap();
    (0..4).for_each(|rank| group.sum(rank, plain(&x[rank], 2, 1)).unwrap());
    let in_order = |i: usize| numbers.iter().map(|of_one| ty.number(of_one[i]) as f32).reduce(|a, b| a + b).unwrap();
    let wanted: Vec<u16> = (0..256).map(|i| ty.bits(f64::from(in_order(i)))).collect();
    assert_eq!(group.download(&x).unwrap(), vec![wanted; 4]);
}
