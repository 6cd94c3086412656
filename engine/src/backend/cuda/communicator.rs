//! Data exchange between the GPUs of a divided model. The kernels of [`kernels::communicator`] read mailboxes that all
//! GPUs can access. If a worker fails, a word in host memory releases all waiting kernels.
//!
//! While a kernel waits for other GPUs, the host must not call driver functions that wait for the device, or two
//! workers might wait for each other. So in that time no memory is allocated or freed, and nothing is recorded. All of
//! this happens before the workers [meet](Communicator::meet) on the host, which they do in every step before its first
//! exchange.

use super::gpu;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};
use kernels::communicator::{ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, MAX_RANKS, all_reduce, gather_logits, shots};
use kernels::floor::Floor;
use kernels::layout::VECTOR;
use kernels::norm::{NormShape, SumNorm};
use kernels::with_element;
use launch::{Context, DeviceBuffer, MappedBuffer};

use super::CudaBackend;
use super::memory::tensor::{CudaTensor, CudaWeight};
use super::step::queue::{LaunchCost, LaunchQueue};
use crate::backend::Norm;
use crate::error::{Error, Result};
use crate::parallel::{RankGroup, Shard, WorkerGroup};

/// State shared by the GPUs of a model.
#[derive(Debug)]
pub struct GpuGroup {
    /// The barrier for the workers' threads.
    threads: Arc<RankGroup>,
    /// Set when a worker has failed. All waiting kernels then stop waiting.
    abort: MappedBuffer,
    mailboxes: Vec<Mailbox>,
    /// Blocks that can be resident at the same time on each of the GPUs.
    blocks: u32,
}

/// The buffer for data that a worker's GPU sends to the others.
#[derive(Debug)]
enum Mailbox {
    /// In the GPU's memory, if the GPUs have peer access.
    Device(DeviceBuffer<u8>),
    /// In the host's memory.
    Host(MappedBuffer),
}

impl Mailbox {
    /// The mailbox's address for kernels of a context.
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

/// A worker's connection to the others.
#[derive(Debug)]
pub struct Communicator {
    group: Arc<GpuGroup>,
    shard: Shard,
    /// The addresses of all mailboxes.
    mailboxes: DeviceBuffer<u64>,
    /// Number of exchanges that each block has made.
    epochs: DeviceBuffer<u32>,
    abort: DevicePtr<u32>,
}

/// A norm that follows a sum in the same launch.
#[derive(Clone, Copy)]
pub struct NormOfSum<'a> {
    /// The norm.
    pub norm: &'a Norm<CudaWeight>,
    /// The shape of the norm's launch if it were separate.
    pub shape: NormShape,
    /// The output of the norm.
    pub out: &'a CudaTensor,
}

/// Checks that this many workers are supported.
///
/// # Errors
/// [`Error::Option`] if there are too many `workers`.
pub fn check_workers(workers: usize) -> Result<()> {
    if workers <= MAX_RANKS as usize {
        return Ok(());
    }
    Err(Error::Option(format!("tensor-parallel-size: at most {MAX_RANKS} GPUs work together, not {workers}")))
}

impl CudaBackend {
    /// Connects the backends of all workers, given in the order of their ranks.
    ///
    /// # Errors
    /// [`Error::Gpu`] if a driver call fails, for example for lack of memory.
    pub fn connect(workers: &mut [CudaBackend]) -> Result<Arc<GpuGroup>> {
        let devices: Vec<_> = workers.iter().filter_map(|worker| worker.queue.device()).collect();
        let [first, ..] = devices[..] else { return Err(Error::Device("there are no GPUs to connect".into())) };
        let pairs = || devices.iter().flat_map(|a| devices.iter().map(move |b| (&a.context, &b.context)));
        let pairs = || pairs().filter(|(a, b)| !std::ptr::eq(*a, *b));
        let mut has_access = true;
        for (a, b) in pairs() {
            has_access &= a.can_access_peer(b).map_err(gpu)?;
        }
        if has_access {
            pairs().try_for_each(|(a, b)| a.enable_peer_access(b)).map_err(gpu)?;
        }
        let mailbox = |device: &&super::CudaDevice| -> Result<Mailbox> {
            if !has_access {
                return Ok(Mailbox::Host(MappedBuffer::zeroed(&device.context, MAILBOX_BYTES / 4).map_err(gpu)?));
            }
            let memory = DeviceBuffer::zeroed(&device.stream, MAILBOX_BYTES).map_err(gpu)?.named("mailbox");
            // Wait before the other GPUs write to it.
            device.stream.synchronize().map_err(gpu)?;
            Ok(Mailbox::Device(memory))
        };
        let group = Arc::new(GpuGroup {
            threads: RankGroup::new(devices.len()),
            abort: MappedBuffer::zeroed(&first.context, 1).map_err(gpu)?,
            mailboxes: devices.iter().map(mailbox).collect::<Result<_>>()?,
            blocks: devices.iter().map(|device| device.context.limits().multiprocessors).min().unwrap_or(1),
        });
        // The grids decide whether drafts are rows of decode attention, and therefore the rows of a step. All workers
        // must use the same.
        let grids = workers.iter().map(|worker| worker.heads.draft_slots());
        let least = |a: Vec<u32>, b: Vec<u32>| a.into_iter().zip(b).map(|(a, b)| a.min(b)).collect();
        let grids = grids.reduce(least).unwrap_or_default();
        for worker in workers {
            worker.heads.set_draft_slots(&grids);
            worker.communicator = worker
                .queue
                .device()
                .map(|device| {
                    let addresses = group.mailboxes.iter().map(|mailbox| mailbox.address_in(&device.context));
                    let addresses = addresses.collect::<launch::Result<Vec<_>>>().map_err(gpu)?;
                    Ok::<_, Error>(Communicator {
                        group: Arc::clone(&group),
                        shard: worker.shard,
                        mailboxes: DeviceBuffer::from_slice(&device.stream, &addresses)
                            .map_err(gpu)?
                            .named("mailboxes"),
                        epochs: DeviceBuffer::zeroed(&device.stream, MAX_BLOCKS as usize).map_err(gpu)?.named("epochs"),
                        abort: group.abort.address_in(&device.context).map_err(gpu)?.cast_const(),
                    })
                })
                .transpose()?;
        }
        Ok(group)
    }

    /// Launches an all-reduce as described at [`Backend::all_reduce`](crate::backend::Backend::all_reduce), followed by
    /// a norm if one is given.
    pub(super) fn launch_all_reduce(&self, x: &CudaTensor, part: Option<&CudaTensor>, norm: Option<NormOfSum<'_>>) {
        debug_assert!(!self.shard.is_whole(), "a single worker needs no all-reduce");
        // Each worker sums up a part of the rows and receives the sums of the other parts.
        let (bytes, of) = (2 * u64::from(x.rows) * u64::from(x.cols), self.shard.of as u64);
        let passes = 2 + u64::from(part.is_some()) + u64::from(norm.is_some());
        let floor = Floor { bytes: passes * bytes, flops: 0 };
        let cost = LaunchCost { floor, peers: 2 * bytes * (of - 1) / of, ..LaunchCost::default() };
        let Some(communicator) = &self.communicator else {
            let name = if norm.is_some() { "all-reduce and norm" } else { "all-reduce" };
            return self.queue.note_exchange(name, cost);
        };
        let (shape, args) = communicator.all_reduce(x, part, norm);
        let call: KernelCall = with_element!(self.element, T => args.instance::<T>());
        // SAFETY: the mailboxes were made for these ranks and live as long as any of them. Workers run the same steps,
        // so they launch the same exchanges in the same order, each in one stream. The grid fits all devices.
        unsafe { self.queue.launch(shape, call, || cost) };
    }
}

impl Communicator {
    /// Waits on the host until all workers have arrived or one has failed.
    pub fn meet(&self) {
        // A failure is reported at the end of the step.
        self.group.threads.meet();
    }

    fn rank_and_count(&self) -> (u32, u32) {
        (self.shard.rank as u32, self.shard.of as u32)
    }

    /// Prepares the launch of a sum and of the norm that follows, if any.
    fn all_reduce(
        &self,
        x: &CudaTensor,
        part: Option<&CudaTensor>,
        then: Option<NormOfSum<'_>>,
    ) -> (LaunchShape, all_reduce) {
        let (rank, ranks) = self.rank_and_count();
        let vectors = x.rows * x.cols / VECTOR;
        let ExchangeShape { launch, chunk } = match then {
            Some(NormOfSum { shape, .. }) => ExchangeShape::of_rows(x.rows, shape, self.group.blocks),
            None => ExchangeShape::of_sum(x.rows * x.cols, self.group.blocks),
        };
        let none = (SumNorm::None, [DevicePtr::NULL; 2], 0.0);
        let (norm, [weight, bias], eps) = then.map_or(none, |then| then.norm.arguments());
        let args = all_reduce {
            x: x.ptr(),
            part: part.map_or(DevicePtr::NULL, |part| part.ptr().cast_const()),
            vectors,
            chunk,
            shots: shots(ranks, 16 * u64::from(vectors)),
            norm: norm as u32,
            weight,
            bias,
            out: then.map_or(DevicePtrMut::NULL, |then| then.out.ptr()),
            eps,
            row: then.map_or(0, |then| then.shape.vectors),
            mailboxes: self.mailboxes.as_ptr(),
            epochs: self.epochs.as_mut_ptr(),
            abort: self.abort,
            rank,
            ranks,
        };
        (launch, args)
    }

    /// Launches a gather of the columns of all workers into `all` on the first worker.
    pub fn gather(&self, queue: &LaunchQueue, part: &CudaTensor, all: &CudaTensor, vocab: u32, cost: LaunchCost) {
        let (rank, ranks) = self.rank_and_count();
        let rows = part.rows;
        let ExchangeShape { launch, chunk } = ExchangeShape::of_logits(rows, vocab, ranks, self.group.blocks);
        let (part, out) = (part.ptr().cast_const(), all.ptr());
        let (mailboxes, epochs, abort) = (self.mailboxes.as_ptr(), self.epochs.as_mut_ptr(), self.abort);
        let call = gather_logits { part, out, rows, vocab, chunk, mailboxes, epochs, abort, rank, ranks };
        // SAFETY: as in `launch_all_reduce`. The parts have the columns given by `Shard::rows`.
        unsafe { queue.launch(launch, call, || cost) };
    }
}
