//! Decode attention and its planner.

use cuda_std::launch::{DevicePtr, LaunchShape};
use cuda_std::vector::Vector;
use kernels::attention;
use kernels::attention::decode::{DecodeLaunch, PLAN_THREADS, paged_attention, plan_paged_attention, plan_vectors};
use kernels::attention::prefill::shape::floor;
use kernels::layout::KvFormat;

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::Buffer;
use crate::number::Type;
use crate::paged::{PagedProblem, PagedSequence, PagedShape};

/// The softcap of the cases. Scores exceed it.
pub(super) const CAP: f32 = 1.5;

/// Streams per sequence in the planner's own case.
const STREAMS: u32 = 8;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let shape = |ty, heads, kv_heads, head_size| {
        let (block_size, window, format) = (16, 0, KvFormat::Plain);
        PagedShape { ty, heads, kv_heads, head_size, block_size, window, format }
    };
    let coded =
        || Type::ALL.into_iter().flat_map(|ty| attention::coded_heads().map(move |(format, size)| (ty, format, size)));
    let capped = || {
        let plain = Type::ALL.into_iter().flat_map(|ty| attention::HEAD_SIZES.map(|size| (ty, KvFormat::Plain, size)));
        plain.chain(coded()).filter(|(.., size)| attention::CAPPED_HEAD_SIZES.contains(size))
    };
    match scale {
        Scale::Small => {
            // More sequences than the planner has threads, so it needs two passes.
            let mut cases = vec![plan(400, 12)];
            // Several thousand tokens per block, as on a GPU.
            cases.push(attend(shape(Type::F16, 2, 2, 128), vec![4096, 3000], 4));
            cases.push(attend(shape(Type::F16, 8, 2, 128), vec![4096, 3000], 4));
            let drafts = [4096, 3000].map(|context| PagedSequence { new: 4, context });
            cases.push(attend_drafts(shape(Type::F16, 8, 2, 128), drafts.to_vec(), 4));
            // Both blocks share the longer sequence.
            for ty in Type::ALL {
                for head_size in attention::HEAD_SIZES {
                    cases.push(attend(shape(ty, 4, 1, head_size), vec![70, 450], 2));
                    if head_size <= 128 {
                        cases.push(attend(shape(ty, 12, 1, head_size), vec![70, 450], 2));
                    }
                }
            }
            // Several thousand tokens per block again, in each cache format.
            cases.extend([64, 128].into_iter().flat_map(|size| {
                KvFormat::ALL
                    .map(|format| attend(PagedShape { format, ..shape(Type::F16, 8, 2, size) }, vec![4096, 3000], 4))
            }));
            cases
                .extend(coded().map(|(ty, format, size)| {
                    attend(PagedShape { format, ..shape(ty, 4, 1, size) }, vec![70, 450], 2)
                }));
            cases.extend(capped().map(|(ty, format, size)| {
                attend_capped(PagedShape { format, ..shape(ty, 4, 1, size) }, vec![70, 450], 2)
            }));
            cases
        }
        // The design's target: a GPU with 132 multiprocessors that hold three blocks each.
        Scale::Full => {
            let mut cases = vec![plan(256, 396)];
            for ty in Type::ALL {
                cases.push(attend(shape(ty, 32, 32, 128), vec![2048; 32], 396));
                cases.push(attend(shape(ty, 32, 8, 128), vec![16_384; 8], 396));
                cases.push(attend(shape(ty, 32, 8, 128), vec![1024], 396));
                // Drafts of the default length.
                for (sequences, context) in [(8, 16_384), (1, 1024)] {
                    let drafts = vec![PagedSequence { new: 6, context }; sequences];
                    cases.push(attend_drafts(shape(ty, 32, 8, 128), drafts, 396));
                }
            }
            for ty in Type::ALL {
                for head_size in attention::HEAD_SIZES {
                    cases.push(attend(shape(ty, 8, 1, head_size), vec![8192; 8], 396));
                    if head_size <= 128 {
                        cases.push(attend(shape(ty, 16, 1, head_size), vec![8192; 8], 396));
                    }
                }
            }
            cases.extend(
                coded().map(|(ty, format, size)| {
                    attend(PagedShape { format, ..shape(ty, 8, 1, size) }, vec![8192; 8], 396)
                }),
            );
            cases.extend(capped().map(|(ty, format, size)| {
                attend_capped(PagedShape { format, ..shape(ty, 8, 1, size) }, vec![8192; 8], 396)
            }));
            cases
        }
    }
}

/// `plan_paged_attention` for sequences of many lengths, without a window.
fn plan(sequences: u32, slots: u32) -> Case {
    Case {
        kernel: "plan_paged_attention",
        shape: format!("{sequences} sequences, {slots} slots"),
        floor: Floor { bytes: u64::from(4 * sequences + 16 * plan_vectors(slots, sequences)), flops: 0 },
        prepare: Box::new(move |gpu| {
            let lengths: Vec<u32> = (0..sequences).map(|s| s * 2711 % 8193).collect();
            let list = gpu.upload("lengths", &lengths)?;
            let plan: Buffer<[u32; 4]> = gpu.alloc("plan", plan_vectors(slots, sequences) as usize)?;
            let truth: Vec<[u32; 4]> = lengths
                .iter()
                .scan(0, |start, &length| {
                    let (begin, tiles) = (*start, length.div_ceil(16));
                    *start += tiles * STREAMS;
                    Some([begin, tiles, 0, length])
                })
                .collect();
            let call = plan_paged_attention {
                lengths: list.ptr(),
                query_starts: gpu.upload("query starts", &(0..=sequences).collect::<Vec<u32>>())?.ptr(),
                plan: plan.mut_ptr(),
                sequences,
                window: 0,
                streams: STREAMS,
                slots,
            };
            Ok(Prepared {
                // SAFETY: there is a length for each sequence, and the plan has its size.
                launch: Box::new(move |gpu| unsafe { gpu.launch(LaunchShape::linear(1, PLAN_THREADS), call) }),
                error: Box::new(move |gpu| Ok(exact(&gpu.download(plan)?[1 + slots as usize..], &truth))),
            })
        }),
    }
}

/// Formats the lengths of sequences.
fn lengths(contexts: &[u32]) -> String {
    match contexts {
        [first, rest @ ..] if rest.iter().all(|length| length == first) => format!("{} x {first}", contexts.len()),
        _ => contexts.iter().map(u32::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// The decode attention kernel for a shape, on a grid of `slots` blocks. Each sequence has the given number of tokens
/// in the cache.
pub fn attend(shape: PagedShape, contexts: Vec<u32>, slots: u32) -> Case {
    // The cases above only use supported shapes.
    let launch = DecodeLaunch::new(shape.supported().unwrap_or_else(|e| panic!("{e}")), slots);
    let spans = contexts.iter().map(|&context| PagedSequence { new: 1, context }).collect();
    attend_to(shape, spans, launch, lengths(&contexts), None)
}

/// The decode attention kernel with sinks and a softcap.
pub fn attend_capped(shape: PagedShape, contexts: Vec<u32>, slots: u32) -> Case {
    let capped = shape.supported().and_then(|shape| shape.with_softcap()).unwrap_or_else(|e| panic!("{e}"));
    let spans = contexts.iter().map(|&context| PagedSequence { new: 1, context }).collect();
    attend_to(shape, spans, DecodeLaunch::new(capped, slots), lengths(&contexts), Some(CAP))
}

/// The decode attention kernel for drafts, for sequences with a few query tokens each.
pub fn attend_drafts(shape: PagedShape, spans: Vec<PagedSequence>, slots: u32) -> Case {
    let launch = DecodeLaunch::with_drafts(shape.supported().unwrap_or_else(|e| panic!("{e}")), slots);
    let lengths: Vec<_> = spans.iter().map(|span| format!("{} of {}", span.new, span.context)).collect();
    attend_to(shape, spans, launch, lengths.join(", "), None)
}

/// A launch for sequences. `lengths` describes them in the case's name. With a softcap, heads have sinks too.
fn attend_to(
    shape: PagedShape,
    spans: Vec<PagedSequence>,
    decode: DecodeLaunch,
    lengths: String,
    cap: Option<f32>,
) -> Case {
    let PagedShape { ty, heads, kv_heads, head_size, block_size, window, .. } = shape;
    let slots = decode.arrivals();
    let mut least = Floor::default();
    for span in &spans {
        let sequence = floor(decode.attention(), span.new, span.context, window);
        least.bytes += sequence.bytes;
        least.flops += sequence.flops;
    }
    Case {
        kernel: if cap.is_some() { "paged_attention_capped" } else { "paged_attention" },
        shape: format!("{}, {heads}/{kv_heads} heads of {head_size}, {lengths}", shape.label()),
        floor: least,
        prepare: Box::new(move |gpu| {
            let mut problem = PagedProblem::new(shape, &spans, 0, 1);
            if let Some(cap) = cap {
                problem = problem.with_sinks().with_softcap(cap);
            }
            let (tables, starts) = problem.flat_tables();
            let [lengths, table_starts, query_starts] = problem.parts(decode, &starts);
            let sequences = lengths.len() as u32;
            let output = gpu.alloc::<u16>("output", problem.query.len())?;
            let query = gpu.upload("query", &problem.query)?;
            let cache = gpu.upload("cache", &problem.cache())?;
            let tables = gpu.upload("tables", &tables)?;
            let table_starts = gpu.upload("table starts", &table_starts)?;
            let query_starts = gpu.upload("query starts", &query_starts)?.ptr();
            let plan = gpu.alloc::<Vector>("plan", plan_vectors(slots, sequences) as usize)?;
            let partials = gpu.alloc::<Vector>("partials", decode.partial_vectors() as usize)?;
            let arrivals = gpu.upload("arrivals", &vec![0u32; decode.arrivals() as usize])?;
            let lengths = gpu.upload("lengths", &lengths)?.ptr();
            let (ranges, streams) = (plan.mut_ptr(), decode.streams());
            let cut = plan_paged_attention { lengths, query_starts, plan: ranges, sequences, window, streams, slots };
            // SAFETY: there is a length for each sequence, and the plan has its size.
            unsafe { gpu.launch(LaunchShape::linear(1, PLAN_THREADS), cut) }?;
            let args = paged_attention {
                output: output.mut_ptr(),
                query: query.ptr(),
                cache: cache.ptr(),
                tables: tables.ptr(),
                table_starts: table_starts.ptr(),
                query_starts,
                plan: plan.ptr(),
                partials: partials.mut_ptr(),
                arrivals: arrivals.mut_ptr(),
                sinks: match &problem.sinks {
                    Some(sinks) => gpu.upload("sinks", sinks)?.ptr(),
                    None => DevicePtr::NULL,
                },
                query_stride: heads * head_size,
                kv_heads,
                group: heads / kv_heads,
                block_size,
                padding: problem.padding,
                rows: decode.rows(),
                window,
                scale: shape.scale(),
            };
            let call = match cap {
                Some(cap) => decode.capped_call(ty.element(), args, cap),
                None => decode.call(ty.element(), args),
            };
            Ok(Prepared {
                // SAFETY: the plan was made for this batch, and the workspace has its size.
                launch: Box::new(move |gpu| unsafe { gpu.launch(decode.shape(), call) }),
                error: Box::new(move |gpu| Ok(problem.error(&gpu.download(output)?) / ty.tolerance())),
            })
        }),
    }
}
