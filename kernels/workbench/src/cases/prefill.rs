//! Attention over prompts.

use cuda_std::launch::DevicePtr;
use kernels::attention::prefill::{hopper, paged_prefill, shape};
use kernels::attention::{CAPPED_HEAD_SIZES, HEAD_SIZES, LATENT_SIZES, coded_heads};
use kernels::layout::KvFormat;

use super::decode::CAP;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::number::Type;
use crate::paged::{PagedProblem, PagedSequence, PagedShape};

/// Returns the cases of prefill attention for a target. Hopper has an additional kernel.
pub fn cases(scale: Scale, target: &str) -> Vec<Case> {
    let has_hopper = target == "sm_90a";
    let every = || {
        Type::ALL.into_iter().flat_map(|ty| {
            let plain = HEAD_SIZES.map(|size| (ty, KvFormat::Plain, size)).into_iter();
            plain.chain(coded_heads().map(move |(format, size)| (ty, format, size)))
        })
    };
    let capped = every().filter(|(.., size)| CAPPED_HEAD_SIZES.contains(size));
    match scale {
        Scale::Small => {
            let spans = [PagedSequence { new: 40, context: 40 }, PagedSequence { new: 9, context: 70 }];
            let shape = |(ty, format, head_size)| PagedShape {
                ty,
                heads: 4,
                kv_heads: 2,
                head_size,
                block_size: 16,
                window: 0,
                format,
            };
            let capped = capped.filter_map(|kind| attend_capped(shape(kind), &spans));
            let latent = Type::ALL.into_iter().flat_map(|ty| {
                LATENT_SIZES.map(|size| PagedShape { kv_heads: 1, ..shape((ty, KvFormat::Plain, size)) })
            });
            let every = every().map(shape).chain(latent);
            every.flat_map(|shape| kernels_for(shape, &spans, has_hopper)).chain(capped).collect()
        }
        // A prompt of 8k tokens, with as many heads as make 4,096 elements. Then other problems of engines, at head
        // size 128.
        Scale::Full => {
            let long = vec![PagedSequence { new: 8192, context: 8192 }];
            let shape = |ty, format, heads, head_size| PagedShape {
                ty,
                heads,
                kv_heads: heads,
                head_size,
                block_size: 16,
                window: 0,
                format,
            };
            let all = every().map(|(ty, format, size)| (shape(ty, format, 4096 / size, size), long.clone()));
            let grouped = PagedShape { kv_heads: 8, ..shape(Type::Bf16, KvFormat::Plain, 32, 128) };
            let others = [
                (grouped, long.clone()),
                (grouped, vec![PagedSequence { new: 512, context: 8192 }]),
                (
                    grouped,
                    [256, 512, 1024, 2048, 100, 17, 3000].map(|new| PagedSequence { new, context: new }).to_vec(),
                ),
                (PagedShape { window: 1024, ..grouped }, long.clone()),
            ];
            // The heads of DeepSeek-V2-Lite, for a prompt and for decode.
            let latent = Type::ALL.into_iter().flat_map(|ty| {
                let small = PagedShape { kv_heads: 1, ..shape(ty, KvFormat::Plain, 16, 48) };
                let shape = PagedShape { head_size: 576, ..small };
                let decode = vec![PagedSequence { new: 1, context: 2048 }; 64];
                [(small, long.clone()), (shape, vec![PagedSequence { new: 2048, context: 2048 }]), (shape, decode)]
            });
            let capped =
                capped.filter_map(|(ty, format, size)| attend_capped(shape(ty, format, 4096 / size, size), &long));
            all.chain(others)
                .chain(latent)
                .flat_map(|(shape, spans)| kernels_for(shape, &spans, has_hopper))
                .chain(capped)
                .collect()
        }
    }
}

/// Makes a case for each kernel that serves the shape.
fn kernels_for(shape: PagedShape, spans: &[PagedSequence], has_hopper: bool) -> Vec<Case> {
    let is_served = has_hopper && shape.supported().is_ok_and(hopper::shape::serves);
    let kernels: &[bool] = if is_served { &[false, true] } else { &[false] };
    kernels.iter().filter_map(|&hopper| attend(shape, spans, hopper)).collect()
}

/// One launch for all sequences, by the Hopper kernel if `on_hopper`. If the shape has no kernel, returns `None`.
pub fn attend(shape: PagedShape, spans: &[PagedSequence], on_hopper: bool) -> Option<Case> {
    attend_with(shape, spans, on_hopper, None)
}

/// One launch for all sequences with sinks and a softcap. If the shape has no kernel, returns `None`.
pub fn attend_capped(shape: PagedShape, spans: &[PagedSequence]) -> Option<Case> {
    attend_with(shape, spans, false, Some(CAP))
}

fn attend_with(shape: PagedShape, spans: &[PagedSequence], on_hopper: bool, cap: Option<f32>) -> Option<Case> {
    let PagedShape { ty, heads, kv_heads, head_size, block_size, window, .. } = shape;
    let checked = shape.supported().ok()?;
    let floors = spans.iter().map(|span| shape::floor(checked, span.new, span.context, window));
    let floor = floors.fold(Floor::default(), |a, b| Floor { bytes: a.bytes + b.bytes, flops: a.flops + b.flops });
    let lengths: Vec<_> = spans.iter().map(|span| format!("{} of {}", span.new, span.context)).collect();
    let seen = if window > 0 { format!(", window {window}") } else { String::new() };
    let spans = spans.to_vec();
    Some(Case {
        kernel: match (on_hopper, cap) {
            _ if shape.is_latent() => "paged_latent_attention",
            (true, _) => "paged_prefill_hopper",
            (false, Some(_)) => "paged_prefill_capped",
            (false, None) => "paged_prefill",
        },
        shape: format!("{}, {heads}/{kv_heads} heads of {head_size}, {}{seen}", shape.label(), lengths.join(", ")),
        floor,
        prepare: Box::new(move |gpu| {
            let mut problem = PagedProblem::new(shape, &spans, 0, 1);
            if let Some(cap) = cap {
                problem = problem.with_sinks().with_softcap(cap);
            }
            let (tables, table_starts) = problem.flat_tables();
            let (tokens, sequences) = (problem.tokens(), spans.len() as u32);
            let output = gpu.alloc::<u16>("output", (tokens * heads * shape.value_size()) as usize)?;
            let cache = gpu.upload("cache", &problem.cache())?.ptr();
            let args = paged_prefill {
                output: output.mut_ptr(),
                query: gpu.upload("query", &problem.query)?.ptr(),
                cache,
                tables: gpu.upload("tables", &tables)?.ptr(),
                table_starts: gpu.upload("table starts", &table_starts)?.ptr(),
                query_starts: gpu.upload("query starts", &problem.query_starts())?.ptr(),
                contexts: gpu.upload("contexts", &problem.contexts())?.ptr(),
                sinks: match &problem.sinks {
                    Some(sinks) => gpu.upload("sinks", sinks)?.ptr(),
                    None => DevicePtr::NULL,
                },
                sequences,
                query_stride: heads * head_size,
                kv_heads,
                group: heads / kv_heads,
                block_size,
                padding: problem.padding,
                window,
                scale: shape.scale(),
            };
            let (launch, call) = if on_hopper {
                let args = hopper::shape::arguments(args, hopper::shape::pages(checked, cache, problem.blocks));
                (
                    hopper::shape::launch_shape(checked, tokens, sequences),
                    hopper::shape::call(checked, ty.element(), args),
                )
            } else {
                let call = match cap {
                    Some(cap) => shape::capped_call(checked, ty.element(), args, cap),
                    None => shape::call(checked, ty.element(), args),
                };
                (shape::launch_shape(checked, tokens, sequences), call)
            };
            Ok(Prepared {
                // SAFETY: the arrays match the problem, and its blocks are within the cache.
                launch: Box::new(move |gpu| unsafe { gpu.launch(launch, call) }),
                error: Box::new(move |gpu| Ok(problem.sampled_error(&gpu.download(output)?) / ty.tolerance())),
            })
        }),
    })
}
