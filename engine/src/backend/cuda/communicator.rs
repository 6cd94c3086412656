//! How the GPUs of a divided model exchange data: mailboxes that all of them read, by the kernels of
//! [`kernels::communicator`], and a word in the host's memory that releases all who wait.
//!
//! While a kernel waits for other GPUs the driver must not be asked for anything that waits for the device, or two workers
//! may wait for each other: memory is neither allocated nor freed, and nothing is recorded. All of this happens before
//! the workers [meet](Communicator::meet) on the host, which they do in every step before its first exchange.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall};
use kernels::communicator::{
    ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, MAX_RANKS, all_reduce, all_reduce_two_shot, gather_logits, is_one_shot,
};
use kernels::element::ElementType;
use kernels::layout::VECTOR;
use kernels::with_element;
use launch::{Context, DeviceBuffer, MappedBuffer};

use super::CudaBackend;
use super::memory::tensor::CudaTensor;
use super::step::queue::{LaunchCost, LaunchQueue};
use crate::error::{Error, Result};
use crate::parallel::{RankGroup, Shard, WorkerGroup};

/// What the GPUs of a model share.
#[derive(Debug)]
pub struct GpuGroup {
    /// Where the workers' threads wait for each other.
    threads: Arc<RankGroup>,
    /// Set when a worker has failed: no kernel waits any longer.
    abort: MappedBuffer,
    mailboxes: Vec<Mailbox>,
    /// Blocks that are resident together on any of the GPUs.
    blocks: u32,
}

/// What a worker's GPU gives to the others.
#[derive(Debug)]
enum Mailbox {
    /// In its own memory, where GPUs have access to each other's.
    Device(DeviceBuffer<u8>),
    /// In the host's memory.
    Host(MappedBuffer),
}

impl Mailbox {
    /// Its address for kernels of a context.
    fn address_in(&self, context: &Context) -> launch::Result<u64> {
        match self {
            Mailbox::Device(memory) => Ok(memory.address()),
            Mailbox::Host(memory) => memory.address_in(context).map(DevicePtrMut::address),
        }
    }
}

impl WorkerGroup for GpuGroup {
    fn fail(&self) {
        self.abort[0].store(1, Ordering::Release);
        self.threads.fail();
    }

    fn has_failed(&self) -> bool {
        self.threads.has_failed()
    }
}

/// A worker's way to the others.
#[derive(Debug)]
pub struct Communicator {
    group: Arc<GpuGroup>,
    shard: Shard,
    /// The addresses of all mailboxes.
    mailboxes: DeviceBuffer<u64>,
    /// How many exchanges each block has made.
    epochs: DeviceBuffer<u32>,
    abort: DevicePtr<u32>,
}

/// How many workers there can be.
///
/// # Errors
/// [`Error::Option`] if it is fewer than `workers`.
pub fn check_workers(workers: usize) -> Result<()> {
    if workers <= MAX_RANKS as usize {
        return Ok(());
    }
    Err(Error::Option(format!("tensor-parallel-size: at most {MAX_RANKS} GPUs work together, not {workers}")))
}

impl CudaBackend {
    /// Makes the backends of all workers, in the order of their ranks, exchange data with each other.
    ///
    /// # Errors
    /// [`Error::Gpu`], if there is not enough memory, too.
    pub fn connect(workers: &mut [CudaBackend]) -> Result<Arc<GpuGroup>> {
        let devices: Vec<_> = workers.iter().filter_map(|worker| worker.queue.device()).collect();
        let [first, ..] = devices[..] else { return Err(Error::Device("there is no GPU to connect".into())) };
        let pairs = || devices.iter().flat_map(|a| devices.iter().map(move |b| (&a.context, &b.context)));
        let pairs = || pairs().filter(|(a, b)| !std::ptr::eq(*a, *b));
        let mut has_access = true;
        for (a, b) in pairs() {
            has_access &= a.can_access_peer(b)?;
        }
        if has_access {
            pairs().try_for_each(|(a, b)| a.enable_peer_access(b))?;
        }
        let mailbox = |device: &&super::CudaDevice| -> Result<Mailbox> {
            if !has_access {
                return Ok(Mailbox::Host(MappedBuffer::zeroed(&device.context, MAILBOX_BYTES / 4)?));
            }
            let memory = DeviceBuffer::zeroed(&device.stream, MAILBOX_BYTES)?.named("mailbox");
            // The others write to it.
            device.stream.synchronize()?;
            Ok(Mailbox::Device(memory))
        };
        let group = Arc::new(GpuGroup {
            threads: RankGroup::new(devices.len()),
            abort: MappedBuffer::zeroed(&first.context, 1)?,
            mailboxes: devices.iter().map(mailbox).collect::<Result<_>>()?,
            blocks: devices.iter().map(|device| device.context.limits().multiprocessors).min().unwrap_or(1),
        });
        for worker in workers {
            worker.communicator = worker
                .queue
                .device()
                .map(|device| {
                    let addresses = group.mailboxes.iter().map(|mailbox| mailbox.address_in(&device.context));
                    let addresses = addresses.collect::<launch::Result<Vec<_>>>()?;
                    Ok::<_, Error>(Communicator {
                        group: Arc::clone(&group),
                        shard: worker.shard,
                        mailboxes: DeviceBuffer::from_slice(&device.stream, &addresses)?.named("mailboxes"),
                        epochs: DeviceBuffer::zeroed(&device.stream, MAX_BLOCKS as usize)?.named("epochs"),
                        abort: group.abort.address_in(&device.context)?.cast_const(),
                    })
                })
                .transpose()?;
        }
        Ok(group)
    }
}

impl Communicator {
    /// Waits on the host until all workers are here, or one has failed.
    pub fn meet(&self) {
        // Of a failure the step's end tells.
        self.group.threads.meet();
    }

    fn place(&self) -> (u32, u32) {
        (self.shard.rank as u32, self.shard.of as u32)
    }

    /// Replaces `x` by the sum of what all workers have in its place.
    pub fn all_reduce(&self, queue: &LaunchQueue, element: ElementType, x: &CudaTensor, cost: LaunchCost) {
        let (rank, ranks) = self.place();
        let ExchangeShape { launch, chunk } = ExchangeShape::of_sum(x.rows * x.cols, self.group.blocks);
        let vectors = x.rows * x.cols / VECTOR;
        let (x, mailboxes, epochs, abort) = (x.ptr(), self.mailboxes.as_ptr(), self.epochs.as_mut_ptr(), self.abort);
        let call: KernelCall = if is_one_shot(ranks, 16 * u64::from(vectors)) {
            let args = all_reduce { x, vectors, chunk, mailboxes, epochs, abort, rank, ranks };
            with_element!(element, T => args.instance::<T>())
        } else {
            let args = all_reduce_two_shot { x, vectors, chunk, mailboxes, epochs, abort, rank, ranks };
            with_element!(element, T => args.instance::<T>())
        };
        // SAFETY: the mailboxes were made for these ranks, and live as long as any of them; workers run the same steps, so
        // that they launch the same exchanges in the same order, each in one stream; the grid fits all devices.
        unsafe { queue.launch(launch, call, || cost) };
    }

    /// Puts the columns of all workers side by side in `all`, which is the first worker's.
    pub fn gather(&self, queue: &LaunchQueue, part: &CudaTensor, all: &CudaTensor, vocab: u32, cost: LaunchCost) {
        let (rank, ranks) = self.place();
        let rows = part.rows;
        let ExchangeShape { launch, chunk } = ExchangeShape::of_logits(rows, vocab, ranks, self.group.blocks);
        let (part, out) = (part.ptr().cast_const(), all.ptr());
        let (mailboxes, epochs, abort) = (self.mailboxes.as_ptr(), self.epochs.as_mut_ptr(), self.abort);
        let call = gather_logits { part, out, rows, vocab, chunk, mailboxes, epochs, abort, rank, ranks };
        // SAFETY: as in `all_reduce`; the parts' columns are those of `Shard::rows`.
        unsafe { queue.launch(launch, call, || cost) };
    }
}
