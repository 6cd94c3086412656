//! Devices that exchange data.

use cuda_std::launch::{Descriptor, Family, Kernel, KernelCall};
use emulator::LaunchOptions;
use emulator::driver::{DeviceOptions, set_launch_options};
use kernels::communicator::{ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, all_reduce, all_reduce_two_shot, gather_logits};
use kernels::layout::VECTOR;
use kernels::with_element;
use launch::{Context, DeviceBuffer, Driver, MappedBuffer, Module, Result, Stream};
use workbench::number::Type;
use workbench::with_devices;

/// Where mailboxes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the devices' own memory, to which all have access.
    Peers,
    /// In the host's memory: no device has access to another's.
    Host,
}

/// A mailbox, in either place.
enum Mailbox {
    Device(DeviceBuffer<u8>),
    Host(MappedBuffer),
}

impl Mailbox {
    fn address_in(&self, context: &Context) -> u64 {
        match self {
            Mailbox::Device(memory) => memory.address(),
            Mailbox::Host(memory) => memory.address_in(context).unwrap().address(),
        }
    }
}

/// A device of a group.
pub struct Rank {
    mailboxes: DeviceBuffer<u64>,
    epochs: DeviceBuffer<u32>,
    module: Module,
    pub stream: Stream,
    context: Context,
}

/// Devices that exchange data.
pub struct Group {
    pub ranks: Vec<Rank>,
    pub abort: MappedBuffer,
    _mailboxes: Vec<Mailbox>,
}

impl Group {
    /// So many devices, with the kernels of a PTX text for elements of a type, in orders of `seed`'s making.
    pub fn new(ptx: &str, ty: Type, ranks: usize, seed: u64, way: Way) -> Group {
        let driver = Driver::emulator().unwrap();
        let options = DeviceOptions { devices: ranks, peer_access: way == Way::Peers, ..DeviceOptions::default() };
        let contexts: Vec<Context> = with_devices(driver, options, || {
            let contexts: Vec<_> = (0..ranks as u32).map(|i| Context::new(driver, i).unwrap()).collect();
            for (a, b) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))).filter(|(a, b)| a != b) {
                assert_eq!(contexts[a].can_access_peer(&contexts[b]).unwrap(), way == Way::Peers);
                assert_eq!(contexts[a].enable_peer_access(&contexts[b]).is_ok(), way == Way::Peers);
            }
            contexts
        });
        let streams: Vec<Stream> = contexts.iter().map(|context| context.stream().unwrap()).collect();
        let mailbox = |(context, stream): (&Context, &Stream)| match way {
            Way::Peers => Mailbox::Device(DeviceBuffer::zeroed(stream, MAILBOX_BYTES).unwrap().named("mailbox")),
            Way::Host => Mailbox::Host(MappedBuffer::zeroed(context, MAILBOX_BYTES / 4).unwrap()),
        };
        let mailboxes: Vec<_> = contexts.iter().zip(&streams).map(mailbox).collect();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let rank = |(context, stream): (Context, Stream)| {
            context.make_current().unwrap();
            set_launch_options(LaunchOptions { seed, ..LaunchOptions::default() }).unwrap();
            let addresses: Vec<u64> = mailboxes.iter().map(|mailbox| mailbox.address_in(&context)).collect();
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
    pub fn sum(&self, rank: usize, ty: Type, two_shot: bool, x: &DeviceBuffer<u16>, blocks: u32) -> Result<()> {
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
    pub fn gather(&self, rank: usize, part: &DeviceBuffer<f32>, out: &DeviceBuffer<u32>, (rows, vocab): (u32, u32)) {
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

    pub fn upload(&self, numbers: &[Vec<u16>]) -> Vec<DeviceBuffer<u16>> {
        let of_one = |(rank, numbers): (&Rank, &Vec<u16>)| DeviceBuffer::from_slice(&rank.stream, numbers).unwrap();
        self.ranks.iter().zip(numbers).map(|of| of_one(of).named("x")).collect()
    }

    /// What all ranks have afterwards, or the first error.
    pub fn download(&self, x: &[DeviceBuffer<u16>]) -> Result<Vec<Vec<u16>>> {
        self.ranks.iter().zip(x).map(|(rank, x)| x.to_vec(&rank.stream)).collect()
    }
}

fn kernels(ty: Type) -> Vec<&'static Descriptor> {
    let sums = all_reduce::INSTANCES.iter().chain(all_reduce_two_shot::INSTANCES);
    let sums = sums.copied().filter(|kernel| kernel.labels == [ty.element().label()]);
    sums.chain([&gather_logits::DESCRIPTOR]).collect()
}
