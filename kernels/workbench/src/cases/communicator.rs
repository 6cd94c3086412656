//! The exchanges between GPUs, with a single rank that exchanges with itself. This measures the cost of a launch
//! without the links.

use cuda_std::launch::{DevicePtr, KernelCall};
use kernels::communicator::{ExchangeShape, MAILBOX_BYTES, MAX_BLOCKS, all_reduce, gather_logits};
use kernels::layout::VECTOR;
use kernels::norm::NormShape;
use kernels::norm::SumNorm;
use kernels::with_element;
use launch::Result;

use super::exact;
use super::norm::{EPS, NormProblem, rounding};
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::{Buffer, Gpu};
use crate::number::{ProblemRng, Type, relative_error};

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (rows, width, vocab, blocks) = match scale {
        // Blocks of several rows, and one block that exchanges twice, so state carries over from row to row and from
        // chunk to chunk.
        Scale::Small => (17, 2048, 1001, 2),
        Scale::Full => (256, 8192, 50272, BLOCKS),
    };
    let kinds = [(1, SumNorm::None), (2, SumNorm::None), (1, SumNorm::Rms), (2, SumNorm::Layer)];
    let sum = |ty| kinds.map(|(shots, norm)| SumAlone { ty, shots, norm, rows, width, blocks }.case());
    Type::ALL.into_iter().flat_map(sum).chain([gather(rows, vocab, blocks)]).collect()
}

/// A rank's mailbox, epochs and abort word: all arguments except the data.
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

/// Number of blocks that are resident at the same time on any device.
const BLOCKS: u32 = 16;

/// An all-reduce over one rank. With a norm it adds zeros to the residual stream. Without one it leaves the numbers
/// unchanged.
#[derive(Clone, Copy, Debug)]
struct SumAlone {
    ty: Type,
    shots: u32,
    norm: SumNorm,
    rows: usize,
    width: usize,
    blocks: u32,
}

impl SumAlone {
    fn case(self) -> Case {
        let SumAlone { ty, shots, norm, rows, width, .. } = self;
        let (exchanges, then) = (
            if shots == 1 { "one exchange" } else { "two exchanges" },
            match norm {
                SumNorm::None => "",
                SumNorm::Rms => ", RMS norm",
                SumNorm::Layer => ", layer norm",
            },
        );
        let passes = if norm == SumNorm::None { 2 } else { 4 };
        Case {
            kernel: "all_reduce",
            shape: format!("{}, {rows} rows of {width}, one rank, {exchanges}{then}", ty.label()),
            floor: Floor { bytes: passes * 2 * (rows * width) as u64, flops: 0 },
            prepare: Box::new(move |gpu| self.prepare(gpu)),
        }
    }

    fn prepare(self, gpu: &mut Gpu) -> Result<Prepared> {
        let SumAlone { ty, shots, norm, rows, width, blocks } = self;
        let mut random = ProblemRng(1);
        let (numbers, weight, bias) = (random.bits(ty, rows * width), random.bits(ty, width), random.bits(ty, width));
        let normed = NormProblem {
            ty,
            layer: norm == SumNorm::Layer,
            rows,
            width,
            residual: true,
            weight: true,
            bias: norm == SumNorm::Layer,
            neutral: true,
            seed: 1,
        };
        let truth: Vec<f64> = match norm {
            SumNorm::None => Vec::new(),
            _ => numbers.chunks_exact(width).flat_map(|row| normed.reference(row, &weight, &bias)).collect(),
        };
        let x = gpu.upload("x", &numbers)?;
        let part = gpu.upload("part", &vec![0u16; numbers.len()])?;
        let (weight, bias) = (gpu.upload("weight", &weight)?, gpu.upload("bias", &bias)?);
        let out = gpu.alloc::<u16>("out", numbers.len())?;
        let Alone { mailboxes, epochs, abort } = Alone::new(gpu)?;
        let row = NormShape::of(width as u32).unwrap_or_else(|error| panic!("{error}"));
        let ExchangeShape { launch, chunk } = match norm {
            SumNorm::None => ExchangeShape::of_sum(numbers.len() as u32, blocks),
            _ => ExchangeShape::of_rows(rows as u32, row, blocks),
        };
        let args = all_reduce {
            x: x.mut_ptr(),
            part: if norm == SumNorm::None { DevicePtr::NULL } else { part.ptr() },
            vectors: numbers.len() as u32 / VECTOR,
            chunk,
            shots,
            norm: norm as u32,
            weight: weight.ptr(),
            bias: bias.ptr(),
            out: out.mut_ptr(),
            eps: EPS,
            row: row.vectors,
            mailboxes: mailboxes.ptr(),
            epochs: epochs.mut_ptr(),
            abort: abort.ptr(),
            rank: 0,
            ranks: 1,
        };
        let call: KernelCall = with_element!(ty.element(), T => args.instance::<T>());
        Ok(Prepared {
            // SAFETY: the mailbox, the epochs and the numbers have the sizes that the kernel requires.
            launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
            error: Box::new(move |gpu| {
                let wrong_sum = exact(&gpu.download(x)?, &numbers);
                if norm == SumNorm::None || wrong_sum > 0.0 {
                    return Ok(wrong_sum);
                }
                Ok(relative_error(gpu.download(out)?.into_iter().map(|v| ty.number(v)), &truth) / rounding(ty))
            }),
        })
    }
}

/// Gathers the columns of a single rank.
fn gather(rows: usize, vocab: usize, blocks: u32) -> Case {
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
            let ExchangeShape { launch, chunk } = ExchangeShape::of_logits(rows as u32, vocab as u32, 1, blocks);
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
                // SAFETY: the mailbox, the epochs and the rows have the sizes that the kernel requires.
                launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
                error: Box::new(move |gpu| Ok(exact(&columns(&gpu.download(out)?), &truth))),
            })
        }),
    }
}
