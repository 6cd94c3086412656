//! The paper's attention kernels.

use kernels::attention::paper::MAX_HEAD_SIZE;
use kernels::attention::paper::floor::floor;
use kernels::attention::{BLOCK_SIZES, HEAD_SIZES};

use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::number::Type;
use crate::paged::{PagedProblem, PagedShape};
use crate::paper::{PlacedAttention, shape, versions};
use kernels::layout::KvFormat;

/// The kernels of both versions, as cases name them.
const KERNELS: [&str; 2] = ["paged_attention_v1", "paged_attention_v2"];

pub fn cases(scale: Scale) -> Vec<Case> {
    // (query heads, key/value heads, lengths): MHA, GQA, and a single sequence.
    let batches: [(u32, u32, Vec<u32>); 3] = match scale {
        Scale::Small => [(4, 4, vec![512; 2]), (8, 2, vec![1024]), (2, 2, vec![1, 100, 700])],
        Scale::Full => [(32, 32, vec![2048; 32]), (32, 8, vec![8192; 8]), (32, 8, vec![1024])],
    };
    let mut cases = vec![every_instance(0), every_instance(1)];
    for (heads, kv_heads, lengths) in batches {
        cases.extend([0, 1].map(|version| batch(version, heads, kv_heads, lengths.clone())));
    }
    cases
}

/// Runs each instance of a kernel on a small problem of its own.
fn every_instance(version: usize) -> Case {
    let shapes = || {
        let sizes = HEAD_SIZES
            .iter()
            .filter(|&&size| size <= MAX_HEAD_SIZE)
            .flat_map(|&head_size| BLOCK_SIZES.map(|block_size| (head_size, block_size)));
        Type::ALL.into_iter().flat_map(move |ty| {
            sizes.clone().map(move |(head_size, block_size)| PagedShape {
                ty,
                heads: 2,
                kv_heads: 1,
                head_size,
                block_size,
                window: 0,
                format: KvFormat::Plain,
            })
        })
    };
    let problems = move || shapes().map(|shape| PagedProblem::decode(shape, &[3, 130], 0, 1));
    let total = problems().map(|problem| floor(shape(&problem), &problem.contexts(), 0));
    let floor = total
        .fold(Floor::default(), |sum, floor| Floor { bytes: sum.bytes + floor.bytes, flops: sum.flops + floor.flops });
    Case {
        kernel: KERNELS[version],
        shape: "each instance, lengths 3 and 130".to_owned(),
        floor,
        prepare: Box::new(move |gpu| {
            let all = problems().map(|problem| {
                let attention = PlacedAttention::upload(gpu, &problem, versions(&problem, 130)[version])?;
                Ok((problem, attention))
            });
            prepared(all.collect::<launch::Result<_>>()?)
        }),
    }
}

/// A batch in `f16`, with heads of 128 and blocks of 16.
fn batch(version: usize, heads: u32, kv_heads: u32, lengths: Vec<u32>) -> Case {
    let shaped = PagedShape {
        ty: Type::F16,
        heads,
        kv_heads,
        head_size: 128,
        block_size: 16,
        window: 0,
        format: KvFormat::Plain,
    };
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let tiny = PagedProblem::decode(shaped, &[1], 0, 1);
    let floor = floor(shape(&tiny), &lengths, 0);
    Case {
        kernel: KERNELS[version],
        shape: format!("f16, {heads}/{kv_heads} heads of 128, {} up to {longest} tokens", lengths.len()),
        floor,
        prepare: Box::new(move |gpu| {
            let problem = PagedProblem::decode(shaped, &lengths, 0, 1);
            let attention = PlacedAttention::upload(gpu, &problem, versions(&problem, longest)[version])?;
            prepared(vec![(problem, attention)])
        }),
    }
}

fn prepared(all: Vec<(PagedProblem, PlacedAttention)>) -> launch::Result<Prepared> {
    let (problems, attentions): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let outputs: Vec<_> = attentions.iter().map(|attention| attention.output).collect();
    Ok(Prepared {
        launch: Box::new(move |gpu| attentions.iter().try_for_each(|attention| attention.launch(gpu))),
        error: Box::new(move |gpu| {
            let mut worst = 0f64;
            for (problem, &output) in problems.iter().zip(&outputs) {
                worst = worst.max(problem.error(&gpu.download(output)?) / problem.shape.ty.tolerance());
            }
            Ok(worst)
        }),
    })
}
