//! What GPUs exchange, on several emulated devices that run in turns, and on one that exchanges with itself.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use cuda_std::launch::{Descriptor, Family, Kernel, KernelCall};
use emulator::LaunchOptions;
use emulator::driver::{DeviceOptions, configure, set_launch_options};
use kernels::communicator::{ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, all_reduce, all_reduce_two_shot, gather_logits};
use kernels::layout::VECTOR;
use kernels::with_element;
use launch::{Context, DeviceBuffer, Driver, Graph, MappedBuffer, Module, Result, Stream};
use workbench::number::{ProblemRng, Type};
use workbench::{Scale, cases};

use crate::frame::gpu::{Gpu, TARGETS};

pub fn every_kernel(gpu: &mut Gpu) {
    for case in cases::all(Scale::Small) {
        if ["all_reduce", "all_reduce_two_shot", "gather_logits"].contains(&case.kernel) {
            gpu.run(&case);
        }
    }
}

/// A device of a group.
struct Rank {
    mailboxes: DeviceBuffer<u64>,
    epochs: DeviceBuffer<u32>,
    module: Module,
    stream: Stream,
    context: Context,
}

/// Devices that exchange data.
struct Group {
    ranks: Vec<Rank>,
    abort: MappedBuffer,
    _mailboxes: Vec<DeviceBuffer<u8>>,
}

impl Group {
    /// So many devices, with the kernels of a PTX text for elements of a type, in orders of `seed`'s making.
    fn new(ptx: &str, ty: Type, ranks: usize, seed: u64) -> Group {
        static ALONE: Mutex<()> = Mutex::new(());
        let contexts: Vec<Context> = {
            let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            configure(DeviceOptions { devices: ranks, ..DeviceOptions::default() });
            (0..ranks as u32).map(|ordinal| Context::new(Driver::emulator().unwrap(), ordinal).unwrap()).collect()
        };
        for (a, b) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            assert!(contexts[a].can_access_peer(&contexts[b]).unwrap());
            contexts[a].enable_peer_access(&contexts[b]).unwrap();
        }
        let streams: Vec<Stream> = contexts.iter().map(|context| context.stream().unwrap()).collect();
        let mailbox = |stream| DeviceBuffer::<u8>::zeroed(stream, MAILBOX_BYTES).unwrap().named("mailbox");
        let mailboxes: Vec<_> = streams.iter().map(mailbox).collect();
        let addresses: Vec<u64> = mailboxes.iter().map(DeviceBuffer::address).collect();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let rank = |(context, stream): (Context, Stream)| {
            context.make_current().unwrap();
            set_launch_options(LaunchOptions { seed, ..LaunchOptions::default() }).unwrap();
            Rank {
                mailboxes: DeviceBuffer::from_slice(&stream, &addresses).unwrap(),
                epochs: DeviceBuffer::zeroed(&stream, MAX_BLOCKS as usize).unwrap().named("epochs"),
                module: Module::load(&context, ptx, &kernels(ty)).unwrap(),
                stream,
                context,
            }
        };
        let abort = MappedBuffer::zeroed(&contexts[0], 1).unwrap();
        Group { ranks: contexts.into_iter().zip(streams).map(rank).collect(), abort, _mailboxes: mailboxes }
    }

    fn len(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The all-reduce of a rank's vectors, in a grid for devices of so many blocks.
    fn sum(&self, rank: usize, ty: Type, two_shot: bool, x: &DeviceBuffer<u16>, blocks: u32) -> Result<()> {
        let Rank { mailboxes, epochs, module, stream, context } = &self.ranks[rank];
        let (mailboxes, epochs) = (mailboxes.as_ptr(), epochs.as_mut_ptr());
        let abort = self.abort.address_in(context).unwrap().cast_const();
        let (to, vectors, rank, ranks) = (x.as_mut_ptr().cast(), x.len() as u32 / VECTOR, rank as u32, self.len());
        let ExchangeShape { launch, chunk } = ExchangeShape::of_sum(x.len() as u32, blocks);
        let call: KernelCall = if two_shot {
            let args = all_reduce_two_shot { x: to, vectors, chunk, mailboxes, epochs, abort, rank, ranks };
            with_element!(ty.element(), T => args.instance::<T>())
        } else {
            let args = all_reduce { x: to, vectors, chunk, mailboxes, epochs, abort, rank, ranks };
            with_element!(ty.element(), T => args.instance::<T>())
        };
        // SAFETY: mailboxes, epochs and numbers are as large as the kernel asks for.
        unsafe { module.launch(stream, launch, call) }
    }

    /// The gathering of a rank's columns.
    fn gather(&self, rank: usize, part: &DeviceBuffer<f32>, out: &DeviceBuffer<u32>, (rows, vocab): (u32, u32)) {
        let Rank { mailboxes, epochs, module, stream, context } = &self.ranks[rank];
        let ranks = self.len();
        let ExchangeShape { launch, chunk } = ExchangeShape::of_logits(rows, vocab, ranks, 2);
        let call = gather_logits {
            part: part.as_ptr().cast(),
            out: out.as_mut_ptr(),
            rows,
            vocab,
            chunk,
            mailboxes: mailboxes.as_ptr(),
            epochs: epochs.as_mut_ptr(),
            abort: self.abort.address_in(context).unwrap().cast_const(),
            rank: rank as u32,
            ranks,
        };
        // SAFETY: mailboxes, epochs and rows are as large as the kernel asks for.
        unsafe { module.launch(stream, launch, call) }.unwrap();
    }

    fn upload(&self, numbers: &[Vec<u16>]) -> Vec<DeviceBuffer<u16>> {
        let of_one = |(rank, numbers): (&Rank, &Vec<u16>)| DeviceBuffer::from_slice(&rank.stream, numbers).unwrap();
        self.ranks.iter().zip(numbers).map(|of| of_one(of).named("x")).collect()
    }

    /// What all ranks have afterwards, or the first error.
    fn download(&self, x: &[DeviceBuffer<u16>]) -> Result<Vec<Vec<u16>>> {
        self.ranks.iter().zip(x).map(|(rank, x)| x.to_vec(&rank.stream)).collect()
    }
}

fn kernels(ty: Type) -> Vec<&'static Descriptor> {
    let sums = all_reduce::INSTANCES.iter().chain(all_reduce_two_shot::INSTANCES);
    let sums = sums.copied().filter(|kernel| kernel.labels == [ty.element().label()]);
    sums.chain([&gather_logits::DESCRIPTOR]).collect()
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

/// Sums of so many vectors on so many devices, twice, come out right and the same on all.
fn assert_sum(target: &str, ty: Type, ranks: usize, two_shot: bool, vectors: usize, blocks: u32, seed: u64) {
    let at = format!("{target}, {ty:?}, {ranks} ranks, two shots: {two_shot}, {vectors} vectors, seed {seed}");
    let (_, ptx) = TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
    let group = Group::new(ptx, ty, ranks, seed);
    for round in 0..2 {
        let numbers = numbers(ty, ranks, vectors * VECTOR as usize, seed + round);
        let x = group.upload(&numbers);
        // The last first, and the first to wait is one that others wait for.
        for rank in (0..ranks).rev() {
            group.sum(rank, ty, two_shot, &x[rank], blocks).unwrap();
        }
        let found = group.download(&x).unwrap_or_else(|error| panic!("{at}: {error}"));
        let wanted = sums(ty, &numbers);
        assert!(found.iter().all(|of_one| *of_one == wanted), "{at}, round {round}");
    }
}

#[test]
fn sums_of_any_size_are_the_same_on_all_devices() {
    // From 16 bytes on; one block, several, and several chunks a block.
    let sizes = [(1, 16), (3, 16), (100, 4), (512, 16), (513, 16), (2500, 1), (5000, 2)];
    for (i, (vectors, blocks)) in sizes.into_iter().enumerate() {
        for (j, ranks) in [2, 4, 8].into_iter().enumerate() {
            for two_shot in [false, true] {
                let (target, _) = TARGETS[(i + j) % 2];
                assert_sum(
                    target,
                    Type::ALL[(i + usize::from(two_shot)) % 2],
                    ranks,
                    two_shot,
                    vectors,
                    blocks,
                    i as u64,
                );
            }
        }
    }
}

#[test]
fn sums_hold_in_any_order_of_devices_warps_and_blocks() {
    for seed in 1..7 {
        assert_sum("sm_80", Type::F16, 3, false, 1500, 2, seed);
        assert_sum("sm_90a", Type::Bf16, 3, true, 1500, 2, seed);
    }
}

#[test]
fn a_mebibyte_is_summed_up() {
    assert_sum("sm_90a", Type::F16, 2, false, 65_536, 16, 1);
    assert_sum("sm_80", Type::Bf16, 4, true, 65_536, 16, 2);
}

#[test]
fn sums_are_rounded_once_and_in_the_order_of_the_ranks() {
    let ty = Type::F16;
    let mut random = ProblemRng(5);
    let numbers: Vec<Vec<u16>> = (0..4).map(|_| random.bits(ty, 256)).collect();
    let group = Group::new(TARGETS[1].1, ty, 4, 1);
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
        let group = Group::new(TARGETS[1].1, ty, ranks, seed);
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
        let group = Group::new(TARGETS[seed % 2].1, Type::F16, ranks, seed as u64);
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
fn noticed(replace: &[(&str, &str)], two_shot: bool, vectors: usize) -> Option<String> {
    let mut ptx = TARGETS[0].1.to_owned();
    for (from, to) in replace {
        assert!(ptx.contains(from), "{from} is not in the PTX");
        ptx = ptx.replace(from, to);
    }
    (0..12).find_map(|seed| {
        let (ty, ranks) = (Type::F16, 2);
        let group = Group::new(&ptx, ty, ranks, seed);
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
    assert_eq!(noticed(&[], false, 600), None);
    assert_eq!(noticed(&[], true, 600), None);
    for two_shot in [false, true] {
        // Flags that order nothing beyond the own device, and flags that order nothing at all.
        for (strong, weak) in [
            ("st.release.sys.global.b32", "st.release.gpu.global.b32"),
            ("ld.acquire.sys.global.b32", "ld.acquire.gpu.global.b32"),
            ("st.release.sys.global.b32", "st.relaxed.sys.global.b32"),
            ("ld.acquire.sys.global.b32", "ld.relaxed.sys.global.b32"),
        ] {
            let said = noticed(&[(strong, weak)], two_shot, 600).unwrap_or_else(|| panic!("{weak}, {two_shot}"));
            assert!(said.contains("in kernel `all_reduce"), "{weak}: {said}");
        }
    }
}

#[test]
fn a_slot_that_is_used_again_too_early_is_noticed() {
    // One slot in place of two, for two chunks.
    for two_shot in [false, true] {
        assert!(
            noticed(&[("36, 0, %p", "0, 0, %p"), ("0, 36, %p", "0, 0, %p")], two_shot, 4000).is_some(),
            "two shots: {two_shot}"
        );
    }
}

#[test]
fn a_rank_that_never_arrives_is_a_fault_and_the_abort_word_releases_the_others() {
    let ty = Type::F16;
    let numbers = numbers(ty, 3, 64, 1);
    let group = Group::new(TARGETS[1].1, ty, 3, 1);
    let x = group.upload(&numbers);
    (0..2).for_each(|rank| group.sum(rank, ty, false, &x[rank], 1).unwrap());
    let fault = group.download(&x).unwrap_err().to_string();
    assert!(fault.contains("in kernel `all_reduce_f16`") && fault.contains("waits"), "{fault}");

    let group = Group::new(TARGETS[1].1, ty, 3, 1);
    let x = group.upload(&numbers);
    group.abort[0].store(1, Ordering::Release);
    for two_shot in [false, true] {
        (0..2).for_each(|rank| group.sum(rank, ty, two_shot, &x[rank], 1).unwrap());
    }
    group.download(&x).unwrap();
}
