//! Decode attention and its planner.

use cuda_std::launch::Entry;
use kernels::attention;
use kernels::attention::decode::{Launch, PLAN_THREADS, floor, plan_paged_attention, plan_vectors};
use kernels::layout::Vector;
use launch::Result;

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::{Buffer, Gpu};
use crate::number::Type;
use crate::paged::{Problem, Shape};

/// Streams of a sequence in the planner's own case.
const STREAMS: u32 = 8;

pub fn cases(scale: Scale) -> Vec<Case> {
    let shape = |ty, heads, kv_heads, head_size| Shape { ty, heads, kv_heads, head_size, block_size: 16, window: 0 };
    match scale {
        Scale::Small => {
            let mut cases = vec![plan(64, 12)];
            // With some thousands of tokens for each block, as a GPU has them.
            cases.push(attend(shape(Type::F16, 2, 2, 128), vec![4096, 3000], 4));
            cases.push(attend(shape(Type::F16, 8, 2, 128), vec![4096, 3000], 4));
            for ty in Type::ALL {
                for head_size in attention::HEAD_SIZES {
                    cases.push(attend(shape(ty, 4, 1, head_size), vec![70, 300], 2));
                    if head_size <= 128 {
                        cases.push(attend(shape(ty, 12, 1, head_size), vec![70, 300], 2));
                    }
                }
            }
            cases
        }
        // What the design is for, on a GPU of 132 multiprocessors that hold three blocks each.
        Scale::Full => {
            let mut cases = vec![plan(256, 396)];
            for ty in Type::ALL {
                cases.push(attend(shape(ty, 32, 32, 128), vec![2048; 32], 396));
                cases.push(attend(shape(ty, 32, 8, 128), vec![16_384; 8], 396));
                cases.push(attend(shape(ty, 32, 8, 128), vec![1024], 396));
            }
            for ty in Type::ALL {
                for head_size in attention::HEAD_SIZES {
                    cases.push(attend(shape(ty, 8, 1, head_size), vec![8192; 8], 396));
                    if head_size <= 128 {
                        cases.push(attend(shape(ty, 16, 1, head_size), vec![8192; 8], 396));
                    }
                }
            }
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
            let args = (list.ptr(), plan.mut_ptr::<Vector>(), sequences, 0, STREAMS, slots);
            Ok(Prepared {
                launch: Box::new(move |gpu| launch_plan(gpu, args)),
                error: Box::new(move |gpu| Ok(exact(&gpu.download(plan)?[1 + slots as usize..], &truth))),
            })
        }),
    }
}

type PlanArgs = (*const u32, *mut Vector, u32, u32, u32, u32);

fn launch_plan(gpu: &mut Gpu, args: PlanArgs) -> Result<()> {
    gpu.launch(Entry::of::<plan_paged_attention>(), (1, 1, 1), PLAN_THREADS, 0, args)
}

/// The lengths of sequences in short.
fn lengths(contexts: &[u32]) -> String {
    match contexts {
        [first, rest @ ..] if rest.iter().all(|length| length == first) => format!("{} x {first}", contexts.len()),
        _ => contexts.iter().map(u32::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// The attention kernel that serves a shape.
fn attend(shape: Shape, contexts: Vec<u32>, slots: u32) -> Case {
    let Shape { ty, heads, kv_heads, head_size, block_size, window } = shape;
    // The shapes of the cases above are such that there are kernels for.
    let supported = attention::Shape::new(heads, kv_heads, head_size, block_size).unwrap_or_else(|e| panic!("{e}"));
    let decode = Launch::new(supported, slots);
    let least = floor(supported, contexts.iter().copied().map(u64::from).sum(), contexts.len() as u64);
    Case {
        kernel: if decode.heads_at_once() == 16 { "paged_attention_16" } else { "paged_attention_8" },
        shape: format!("{}, {heads}/{kv_heads} heads of {head_size}, {}", ty.label(), lengths(&contexts)),
        floor: least,
        prepare: Box::new(move |gpu| {
            let problem = Problem::decode(shape, &contexts, 0, 1);
            let sequences = contexts.len() as u32;
            let output = gpu.alloc::<u16>("output", problem.query.len())?;
            let query = gpu.upload("query", &problem.query)?;
            let cache = gpu.upload("cache", &problem.pages())?;
            let (tables, starts) = problem.flat_tables();
            let (tables, starts) = (gpu.upload("tables", &tables)?, gpu.upload("table starts", &starts)?);
            let plan = gpu.alloc::<Vector>("plan", plan_vectors(slots, sequences) as usize)?;
            let partials = gpu.alloc::<Vector>("partials", decode.partial_vectors() as usize)?;
            let arrivals = gpu.upload("arrivals", &vec![0u32; decode.arrivals() as usize])?;
            let lengths = gpu.upload("lengths", &contexts)?;
            launch_plan(gpu, (lengths.ptr(), plan.mut_ptr(), sequences, window, decode.streams(), slots))?;
            let args = (
                output.mut_ptr(),
                query.ptr(),
                cache.ptr(),
                tables.ptr(),
                starts.ptr(),
                plan.ptr(),
                partials.mut_ptr(),
                arrivals.mut_ptr(),
                heads * head_size,
                kv_heads,
                heads / kv_heads,
                block_size,
                shape.scale(),
            );
            // Every instance has the labels of a type and a head size of its own.
            let entry = decode.entry(ty.label()).unwrap_or_else(|| panic!("no kernel for {shape:?}"));
            Ok(Prepared {
                launch: Box::new(move |gpu| {
                    gpu.launch(entry, decode.grid(), decode.threads(), decode.shared_bytes(), args)
                }),
                error: Box::new(move |gpu| Ok(problem.error(&gpu.download(output)?) / ty.tolerance())),
            })
        }),
    }
}
