//! What GPUs exchange, with a single rank that exchanges with itself: what a launch costs beside the links.

use cuda_std::launch::KernelCall;
use kernels::communicator::{ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, all_reduce, all_reduce_two_shot, gather_logits};
use kernels::layout::VECTOR;
use kernels::with_element;
use launch::Result;

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::{Buffer, Gpu};
use crate::number::{ProblemRng, Type};

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (rows, width, vocab) = match scale {
        Scale::Small => (3, 512, 1001),
        Scale::Full => (256, 8192, 50272),
    };
    let sum = |ty| [false, true].map(|two_shot| SumAlone { ty, two_shot, elements: rows * width }.case());
    Type::ALL.into_iter().flat_map(sum).chain([gather(rows, vocab)]).collect()
}

/// A rank's mailbox, epochs and abort word: all arguments but those of the data.
struct Alone {
    mailboxes: Buffer<u64>,
    epochs: Buffer<u32>,
    abort: Buffer<u32>,
}

impl Alone {
    fn new(gpu: &mut Gpu) -> Result<Self> {
        let mailbox = gpu.upload("mailbox", &vec![0u32; MAILBOX_BYTES / 4])?;
        Ok(Alone {
            mailboxes: gpu.upload("mailboxes", &[mailbox.ptr::<u32>().address()])?,
            epochs: gpu.upload("epochs", &vec![0u32; MAX_BLOCKS as usize])?,
            abort: gpu.upload("abort", &[0u32])?,
        })
    }
}

/// Blocks that are resident together, on any device.
const BLOCKS: u32 = 16;

/// An all-reduce of so many elements over one rank, which leaves them as they are.
#[derive(Clone, Copy, Debug)]
struct SumAlone {
    ty: Type,
    two_shot: bool,
    elements: usize,
}

impl SumAlone {
    fn case(self) -> Case {
        let SumAlone { ty, two_shot, elements } = self;
        Case {
            kernel: if two_shot { "all_reduce_two_shot" } else { "all_reduce" },
            shape: format!("{}, {elements} elements, one rank", ty.label()),
            floor: Floor { bytes: 4 * elements as u64, flops: 0 },
            prepare: Box::new(move |gpu| self.prepare(gpu)),
        }
    }

    fn prepare(self, gpu: &mut Gpu) -> Result<Prepared> {
        let SumAlone { ty, two_shot, elements } = self;
        let numbers = ProblemRng(1).bits(ty, elements);
        let x = gpu.upload("x", &numbers)?;
        let Alone { mailboxes, epochs, abort } = Alone::new(gpu)?;
        let (mailboxes, epochs, abort) = (mailboxes.ptr(), epochs.mut_ptr(), abort.ptr());
        let ExchangeShape { launch, chunk } = ExchangeShape::of_sum(elements as u32, BLOCKS);
        let (to, vectors, rank, ranks) = (x.mut_ptr(), elements as u32 / VECTOR, 0, 1);
        let call: KernelCall = if two_shot {
            let args = all_reduce_two_shot { x: to, vectors, chunk, mailboxes, epochs, abort, rank, ranks };
            with_element!(ty.element(), T => args.instance::<T>())
        } else {
            let args = all_reduce { x: to, vectors, chunk, mailboxes, epochs, abort, rank, ranks };
            with_element!(ty.element(), T => args.instance::<T>())
        };
        Ok(Prepared {
            // SAFETY: the mailbox, the epochs and the numbers are as large as the kernel asks for.
            launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
            error: Box::new(move |gpu| Ok(exact(&gpu.download(x)?, &numbers))),
        })
    }
}

/// Gathers the columns of one rank.
fn gather(rows: usize, vocab: usize) -> Case {
    Case {
        kernel: "gather_logits",
        shape: format!("{rows} rows of {vocab} logits, one rank"),
        floor: Floor { bytes: 8 * (rows * vocab) as u64, flops: 0 },
        prepare: Box::new(move |gpu| {
            let stride = vocab.next_multiple_of(4);
            let mut random = ProblemRng(2);
            let logits: Vec<f32> = (0..rows * stride).map(|_| random.unit() as f32).collect();
            let (part, out) = (gpu.upload("part", &logits)?, gpu.upload("out", &vec![0f32; rows * stride])?);
            let Alone { mailboxes, epochs, abort } = Alone::new(gpu)?;
            let ExchangeShape { launch, chunk } = ExchangeShape::of_logits(rows as u32, vocab as u32, 1, BLOCKS);
            let call = gather_logits {
                part: part.ptr(),
                out: out.mut_ptr(),
                rows: rows as u32,
                vocab: vocab as u32,
                chunk,
                mailboxes: mailboxes.ptr(),
                epochs: epochs.mut_ptr(),
                abort: abort.ptr(),
                rank: 0,
                ranks: 1,
            };
            let columns = move |rows: &[f32]| -> Vec<f32> {
                rows.chunks_exact(stride).flat_map(|row| &row[..vocab]).copied().collect()
            };
            let truth = columns(&logits);
            Ok(Prepared {
                // SAFETY: the mailbox, the epochs and the rows are as large as the kernel asks for.
                launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
                error: Box::new(move |gpu| Ok(exact(&columns(&gpu.download(out)?), &truth))),
            })
        }),
    }
}
