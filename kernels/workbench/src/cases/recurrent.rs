//! Layers that keep a state: their convolutions, and the recurrence of heads.

use cuda_std::launch::{DevicePtr, KernelCall, LaunchShape};
use cuda_std::vector::Vector;
use kernels::recurrent::chunked::shape::ChunkedShape;
use kernels::recurrent::plan::{ConvolutionOperands, HeadOperands, HeadShape, RecurrentShape};
use launch::Result;

use super::exact;
use super::norm::rounding;
use crate::case::{Case, Launch, Prepared, Scale};
use crate::gpu::{Buffer, Gpu};
use crate::number::{Type, relative_error};
use crate::recurrent::{HeadData, PlacedSequences, RecurrentProblem};

/// The allowed error of a state, relative to the largest element.
const STATE: f64 = 2e-5;

/// Qwen3-Next, Granite 4 and LFM2.
pub const LAYERS: [RecurrentShape; 3] = [
    RecurrentShape::with_heads(4, delta_net(16, 32, 128, 128)),
    RecurrentShape::with_heads(4, HeadShape { is_delta: false, ..delta_net(1, 128, 128, 64) }),
    RecurrentShape { kernel: 3, channels: 2048, heads: None },
];

/// A gated delta net.
pub const fn delta_net(key_heads: u32, heads: u32, key_dim: u32, value_dim: u32) -> HeadShape {
    HeadShape { is_delta: true, key_heads, heads, key_dim, value_dim, tiled: false }
}

/// Small layers of each kind. The first one's keys have fewer elements than a warp has room for.
pub const SMALL: [RecurrentShape; 3] = [
    RecurrentShape::with_heads(4, delta_net(2, 4, 48, 16)),
    RecurrentShape::with_heads(4, HeadShape { is_delta: false, ..delta_net(1, 3, 128, 24) }),
    RecurrentShape { kernel: 3, channels: 1032, heads: None },
];

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    // Decode steps, prompts, and prompts of several tiles.
    let (layers, batches, block_size) = match scale {
        Scale::Small => (SMALL, [vec![[0, 1], [16, 1], [0, 0]], vec![[8, 21], [0, 37]], vec![[64, 200], [8, 70]]], 8),
        Scale::Full => (LAYERS, [vec![[512, 1]; 64], vec![[512, 2048]; 2], vec![[0, 4096]]], 16),
    };
    let problems = layers.into_iter().flat_map(|shape| {
        let batches = batches.clone().into_iter();
        batches.flat_map(move |sequences| {
            Type::ALL.map(|ty| RecurrentProblem {
                ty,
                shape,
                block_size,
                sequences: sequences.clone(),
                in_place: false,
                seed: 1,
            })
        })
    });
    problems.flat_map(all).collect()
}

/// The cases of a problem: its convolution, and both forms of the recurrence if it has heads.
pub fn all(problem: RecurrentProblem) -> impl Iterator<Item = Case> {
    let forms = [Form::Recurrent, Form::Chunked].into_iter();
    let of_heads = problem.clone();
    let heads = problem.shape.heads.into_iter().flat_map(move |shape| {
        let problem = of_heads.clone();
        forms.clone().map(move |form| heads(problem.clone(), shape, form))
    });
    [convolution(problem)].into_iter().chain(heads)
}

fn label(problem: &RecurrentProblem, what: &str) -> String {
    let sequences = &problem.sequences;
    let count = sequences.iter().filter(|[_, len]| *len > 0).count();
    format!("{}, {what}, {} rows of {count} sequences", problem.ty.label(), problem.rows())
}

/// Returns the launches of a problem's kernels. If they change their own input, they begin with the blocks `before`.
fn launch(
    before: Vec<f32>,
    (in_place, blocks): (bool, Buffer<f32>),
    calls: Vec<(LaunchShape, KernelCall)>,
) -> Box<Launch> {
    Box::new(move |gpu| {
        if in_place {
            gpu.write(blocks, &before)?;
        }
        for &(shape, call) in &calls {
            // SAFETY: the arrays have the layer's shape, and sequences share no blocks.
            unsafe { gpu.launch(shape, call)? };
        }
        Ok(())
    })
}

fn convolution(problem: RecurrentProblem) -> Case {
    let RecurrentShape { kernel, channels, .. } = problem.shape;
    let (rows, [read, stored]) = (problem.rows(), problem.states());
    Case {
        kernel: "causal_convolution",
        shape: label(&problem, &format!("{channels} channels")),
        floor: problem.shape.convolution_floor(rows.into(), read, stored),
        prepare: Box::new(move |gpu| {
            let problem = problem.clone();
            let (paged, mut random) = (problem.paged(), problem.random(3));
            let x = random.bits(problem.ty, (rows * channels) as usize);
            let mut numbers =
                |count: u32| -> Vec<f32> { (0..count * channels).map(|_| random.unit() as f32).collect() };
            // As in Granite 4, layers of Mamba-2 have a bias.
            let has_bias = problem.shape.heads.is_some_and(|heads| !heads.is_delta);
            let (factors, bias) = (numbers(kernel), has_bias.then(|| numbers(1)));
            let (truth, blocks) = problem.convolved(&paged, &x, &factors, bias.as_deref());
            let placed = problem.place(&paged, gpu)?;
            let out = gpu.alloc::<u16>("out", x.len())?;
            let operands = ConvolutionOperands {
                x: gpu.upload("x", &x)?.ptr(),
                kernel: gpu.upload("kernel", &factors)?.ptr(),
                bias: match &bias {
                    Some(bias) => gpu.upload("bias", bias)?.ptr(),
                    None => DevicePtr::NULL,
                },
                out: out.mut_ptr(),
            };
            let call = problem.shape.convolution(problem.ty.element(), operands, placed.operands);
            let shape = problem.shape.convolution_shape(problem.sequences.len() as u32, problem.longest());
            let (ty, in_place) = (problem.ty, problem.in_place);
            Ok(Prepared {
                launch: launch(paged.blocks, (in_place, placed.blocks), vec![(shape, call)]),
                error: Box::new(move |gpu| {
                    let results = gpu.download(out)?.into_iter().map(|x| ty.number(x));
                    let bits = |numbers: &[f32]| -> Vec<u32> { numbers.iter().map(|x| x.to_bits()).collect() };
                    let of_states = exact(&bits(&gpu.download(placed.blocks)?), &bits(&blocks));
                    Ok(of_states.max(relative_error(results, &truth) / rounding(ty)))
                }),
            })
        }),
    }
}

/// How the recurrence is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Token by token.
    Recurrent,
    /// In chunks, for all sequences.
    Chunked,
    /// In chunks for sequences of at least this many rows, and otherwise token by token.
    Mixed(u32),
}

/// The recurrence of a problem's heads.
pub fn heads(problem: RecurrentProblem, heads: HeadShape, form: Form) -> Case {
    let (rows, [read, stored]) = (problem.rows(), problem.states());
    let HeadShape { heads: count, key_dim, value_dim, .. } = heads;
    Case {
        kernel: if form == Form::Recurrent { "recur_heads" } else { "pass_chunks" },
        shape: label(&problem, &format!("{count} heads of {key_dim} x {value_dim}")),
        floor: heads.floor(rows.into(), read, stored),
        prepare: Box::new(move |gpu| {
            let problem = problem.clone();
            let (paged, data) = (problem.paged(), HeadData::new(&problem, heads));
            let (truth, blocks) = problem.recurred(&paged, heads, &data);
            let placed = problem.place(&paged, gpu)?;
            let out = gpu.alloc::<u16>("out", truth.len())?;
            let operands = place_heads(&data, out, gpu)?;
            let calls = calls(&problem, heads, form, operands, placed, gpu)?;
            let (ty, in_place) = (problem.ty, problem.in_place);
            Ok(Prepared {
                launch: launch(paged.blocks, (in_place, placed.blocks), calls),
                error: Box::new(move |gpu| {
                    let results = gpu.download(out)?.into_iter().map(|x| ty.number(x));
                    let states = gpu.download(placed.blocks)?;
                    // Blocks that no state is stored in keep their NaNs.
                    let known = |x: f64| if x.is_nan() { 1e9 } else { x };
                    let truths: Vec<f64> = blocks.iter().copied().filter(|x| !x.is_nan()).collect();
                    let is_known =
                        |(x, truth): (f32, &f64)| (!truth.is_nan() || !x.is_nan()).then_some(known(x.into()));
                    let stored: Vec<f64> = states.into_iter().zip(&blocks).filter_map(is_known).collect();
                    if stored.len() != truths.len() {
                        return Ok(f64::INFINITY);
                    }
                    let of_states = relative_error(stored, &truths) / STATE;
                    Ok(of_states.max(relative_error(results, &truth) / (rounding(ty) + STATE)))
                }),
            })
        }),
    }
}

/// Uploads the inputs of heads to a device.
///
/// # Errors
/// [`launch::Error`], if there is not enough memory.
pub fn place_heads(data: &HeadData, out: Buffer<u16>, gpu: &mut Gpu) -> Result<HeadOperands> {
    Ok(HeadOperands {
        mixed: gpu.upload("mixed", &data.mixed)?.ptr(),
        steps: gpu.upload("steps", &data.steps)?.ptr(),
        step_stride: data.step_stride,
        decay: gpu.upload("decay", &data.decay)?.ptr(),
        step_bias: gpu.upload("step bias", &data.step_bias)?.ptr(),
        skip: match &data.skip {
            Some(skip) => gpu.upload("skip", skip)?.ptr(),
            None => DevicePtr::NULL,
        },
        out: out.mut_ptr(),
    })
}

/// Returns the launches for a form of the recurrence.
///
/// # Errors
/// [`launch::Error`], if there is not enough memory for the workspace.
pub fn calls(
    problem: &RecurrentProblem,
    heads: HeadShape,
    form: Form,
    operands: HeadOperands,
    placed: PlacedSequences,
    gpu: &mut Gpu,
) -> Result<Vec<(LaunchShape, KernelCall)>> {
    let (element, kernel, count) = (problem.ty.element(), problem.shape.kernel, problem.sequences.len() as u32);
    let from = match form {
        Form::Recurrent => u32::MAX,
        Form::Chunked => 1,
        Form::Mixed(from) => from,
    };
    let mut calls = Vec::new();
    if form != Form::Recurrent {
        let shape = ChunkedShape { heads, from };
        let workspace = gpu.alloc::<Vector>("workspace", shape.workspace_vectors(problem.rows()))?.mut_ptr();
        let prepare = shape.prepare(element, operands, workspace, placed.operands);
        calls.push((shape.prepare_shape(count, problem.longest()), prepare));
        calls.push((shape.pass_shape(count), shape.pass(element, kernel, operands, workspace, placed.operands)));
    }
    if form != Form::Chunked {
        calls.push((heads.shape(count), heads.call(element, kernel, operands, placed.operands, from)));
    }
    Ok(calls)
}
