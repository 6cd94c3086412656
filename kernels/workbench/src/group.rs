//! Emulated devices that exchange data with the kernels of [`kernels::communicator`].

use cuda_std::launch::{Descriptor, DevicePtr, DevicePtrMut, Family, Kernel, KernelCall};
use emulator::LaunchOptions;
use emulator::driver::{self, DeviceOptions};
use kernels::communicator::{ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, all_reduce, gather_logits};
use kernels::layout::VECTOR;
use kernels::norm::SumNorm;
use kernels::with_element;
use launch::{Context, DeviceBuffer, Driver, MappedBuffer, Module, Result, Stream};

use crate::gpu::with_devices;
use crate::number::Type;

/// The memory that mailboxes are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailboxPlace {
    /// The devices' own memory, which all devices can access.
    Devices,
    /// The host's memory. No device can access another's memory.
    Host,
}

/// A mailbox, in either place.
enum Mailbox {
    Device(DeviceBuffer<u8>),
    Host(MappedBuffer),
}

impl Mailbox {
    fn address_in(&self, context: &Context) -> Result<u64> {
        match self {
            Mailbox::Device(memory) => Ok(memory.address()),
            Mailbox::Host(memory) => memory.address_in(context).map(DevicePtrMut::address),
        }
    }
}

/// A device of a group.
pub struct GroupDevice {
    mailboxes: DeviceBuffer<u64>,
    epochs: DeviceBuffer<u32>,
    module: Module,
    /// The stream for its kernels.
    pub stream: Stream,
    /// The device's context.
    pub context: Context,
}

/// Devices that exchange data, in rank order.
pub struct DeviceGroup {
    /// The devices.
    pub devices: Vec<GroupDevice>,
    /// A word that releases all waiting kernels.
    pub abort: MappedBuffer,
    ty: Type,
    _mailboxes: Vec<Mailbox>,
}

/// An all-reduce as one rank launches it.
#[derive(Clone, Copy)]
pub struct GroupSum<'a> {
    /// Receives the sums. If there is a `part`, they are added to it.
    pub x: &'a DeviceBuffer<u16>,
    /// The rank's contribution to the sums, if it is not `x`.
    pub part: Option<&'a DeviceBuffer<u16>>,
    /// Number of exchanges, one or two.
    pub shots: u32,
    /// The norm that follows.
    pub norm: Option<GroupNorm<'a>>,
    /// Shape of the launch.
    pub shape: ExchangeShape,
}

/// The norm that follows a sum.
#[derive(Clone, Copy)]
pub struct GroupNorm<'a> {
    /// The kind of norm.
    pub kind: SumNorm,
    /// Elements per row.
    pub width: u32,
    /// Factors. A layer norm may have none.
    pub weight: Option<&'a DeviceBuffer<u16>>,
    /// Biases of a layer norm, which may have none.
    pub bias: Option<&'a DeviceBuffer<u16>>,
    /// Receives the result.
    pub out: &'a DeviceBuffer<u16>,
    /// Added to the variance.
    pub eps: f32,
}

impl DeviceGroup {
    /// Creates `ranks` devices with the kernels of a PTX text for elements of type `ty`. `seed` determines the order of
    /// warps and blocks.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn new(ptx: &str, ty: Type, ranks: usize, seed: u64, place: MailboxPlace) -> Result<Self> {
        let driver = Driver::emulator()?;
        let on_devices = place == MailboxPlace::Devices;
        let options = DeviceOptions { devices: ranks, peer_access: on_devices, ..DeviceOptions::default() };
        let contexts: Vec<Context> = with_devices(driver, options, || {
            (0..ranks as u32).map(|i| Context::new(driver, i)).collect::<Result<_>>()
        })?;
        if on_devices {
            for (a, b) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))).filter(|(a, b)| a != b) {
                contexts[a].enable_peer_access(&contexts[b])?;
            }
        }
        let streams: Vec<Stream> = contexts.iter().map(Context::stream).collect::<Result<_>>()?;
        let mailbox = |(context, stream): (&Context, &Stream)| {
            if !on_devices {
                return MappedBuffer::zeroed(context, MAILBOX_BYTES / 4).map(Mailbox::Host);
            }
            let memory = DeviceBuffer::zeroed(stream, MAILBOX_BYTES)?.named("mailbox");
            stream.synchronize()?;
            Ok(Mailbox::Device(memory))
        };
        let mailboxes: Vec<_> = contexts.iter().zip(&streams).map(mailbox).collect::<Result<_>>()?;
        let abort = MappedBuffer::zeroed(&contexts[0], 1)?;
        let device = |(context, stream): (Context, Stream)| {
            context.make_current()?;
            // The call cannot fail, since the context is current.
            let _ = driver::set_launch_options(LaunchOptions { seed, ..LaunchOptions::default() });
            let addresses = mailboxes.iter().map(|mailbox| mailbox.address_in(&context));
            Ok(GroupDevice {
                mailboxes: DeviceBuffer::from_slice(&stream, &addresses.collect::<Result<Vec<_>>>()?)?,
                epochs: DeviceBuffer::zeroed(&stream, MAX_BLOCKS as usize)?.named("epochs"),
                module: Module::load(&context, ptx, &kernels(ty, ptx))?,
                stream,
                context,
            })
        };
        let devices = contexts.into_iter().zip(streams).map(device).collect::<Result<_>>()?;
        Ok(DeviceGroup { devices, abort, ty, _mailboxes: mailboxes })
    }

    /// Queues the all-reduce of a rank.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn sum(&self, rank: usize, sum: GroupSum<'_>) -> Result<()> {
        let GroupDevice { mailboxes, epochs, module, stream, context } = &self.devices[rank];
        let GroupSum { x, part, shots, norm, shape: ExchangeShape { launch, chunk } } = sum;
        let pointer = |buffer: Option<&DeviceBuffer<u16>>| buffer.map_or(DevicePtr::NULL, |b| b.as_ptr().cast());
        let args = all_reduce {
            x: x.as_mut_ptr().cast(),
            part: pointer(part),
            vectors: x.len() as u32 / VECTOR,
            chunk,
            shots,
            norm: norm.map_or(SumNorm::None, |norm| norm.kind) as u32,
            weight: pointer(norm.and_then(|norm| norm.weight)),
            bias: pointer(norm.and_then(|norm| norm.bias)),
            out: norm.map_or(DevicePtrMut::NULL, |norm| norm.out.as_mut_ptr().cast()),
            eps: norm.map_or(0.0, |norm| norm.eps),
            row: norm.map_or(0, |norm| norm.width / VECTOR),
            mailboxes: mailboxes.as_ptr(),
            epochs: epochs.as_mut_ptr(),
            abort: self.abort.address_in(context)?.cast_const(),
            rank: rank as u32,
            ranks: self.devices.len() as u32,
        };
        let call: KernelCall = with_element!(self.ty.element(), T => args.instance::<T>());
        // SAFETY: mailboxes, epochs and numbers have the sizes that the kernel requires.
        unsafe { module.launch(stream, launch, call) }
    }

    /// Queues the gathering of a rank's columns, in two blocks.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn gather(
        &self,
        rank: usize,
        part: &DeviceBuffer<f32>,
        out: &DeviceBuffer<u32>,
        (rows, vocab): (u32, u32),
    ) -> Result<()> {
        let GroupDevice { mailboxes, epochs, module, stream, context } = &self.devices[rank];
        let ranks = self.devices.len() as u32;
        let ExchangeShape { launch, chunk } = ExchangeShape::of_logits(rows, vocab, ranks, 2);
        let call = gather_logits {
            part: part.as_ptr().cast(),
            out: out.as_mut_ptr(),
            rows,
            vocab,
            chunk,
            mailboxes: mailboxes.as_ptr(),
            epochs: epochs.as_mut_ptr(),
            abort: self.abort.address_in(context)?.cast_const(),
            rank: rank as u32,
            ranks,
        };
        // SAFETY: mailboxes, epochs and rows have the sizes that the kernel requires.
        unsafe { module.launch(stream, launch, call) }
    }

    /// Creates a buffer with these numbers on each device.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn upload(&self, name: &str, numbers: &[Vec<u16>]) -> Result<Vec<DeviceBuffer<u16>>> {
        let devices = self.devices.iter().zip(numbers);
        devices.map(|(device, own)| Ok(DeviceBuffer::from_slice(&device.stream, own)?.named(name))).collect()
    }

    /// Waits for the work of all ranks and returns their buffers.
    ///
    /// # Errors
    /// The first error, including a kernel's fault.
    pub fn download(&self, x: &[DeviceBuffer<u16>]) -> Result<Vec<Vec<u16>>> {
        self.devices.iter().zip(x).map(|(device, x)| x.to_vec(&device.stream)).collect()
    }
}

/// Returns the kernels for a type that are in a PTX text.
fn kernels(ty: Type, ptx: &str) -> Vec<&'static Descriptor> {
    let sums = all_reduce::INSTANCES.iter().copied().filter(|kernel| kernel.labels == [ty.element().label()]);
    let all = sums.chain([&gather_logits::DESCRIPTOR]);
    all.filter(|kernel| ptx.contains(&format!(".entry {}(", kernel.name))).collect()
}
