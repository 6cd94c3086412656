//! The projections between heads and latent vectors.

use kernels::latent::{join_latents, join_shape, multiply_heads, product_shape};
use kernels::with_element;

use super::exact;
use super::norm::rounding;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::number::{ProblemRng, Type, relative_error};

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    // DeepSeek-V2-Lite's heads, for its queries and for its values.
    let (tokens, heads, sizes) = match scale {
        Scale::Small => (19, 3, [[32, 40], [16, 136]]),
        Scale::Full => (64, 16, [[128, 512], [512, 128]]),
    };
    let products = sizes.into_iter().flat_map(|sizes| Type::ALL.map(|ty| product(ty, tokens, heads, sizes)));
    products.chain([join(tokens, heads, [2, 4])]).collect()
}

/// Products of all heads. A matrix has the given inputs and outputs. Results are parts of longer rows.
pub fn product(ty: Type, tokens: u32, heads: u32, [inputs, outputs]: [u32; 2]) -> Case {
    let (x_stride, out_pitch) = (heads * inputs + 6, outputs + 2);
    let out_stride = heads * out_pitch + 4;
    let weights = heads * outputs * inputs;
    Case {
        kernel: "multiply_heads",
        shape: format!("{}, {tokens} tokens, {heads} heads, {inputs} to {outputs}", ty.label()),
        floor: Floor {
            bytes: 2 * u64::from(weights + tokens * heads * (inputs + outputs)),
            flops: 2 * u64::from(tokens) * u64::from(weights),
        },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(8);
            let x = random.bits(ty, (tokens * x_stride) as usize);
            let weight = random.bits(ty, weights as usize);
            let before = random.bits(ty, (tokens * out_stride) as usize);
            let out = gpu.upload("out", &before)?;
            let args = multiply_heads {
                x: gpu.upload("x", &x)?.ptr(),
                weight: gpu.upload("weight", &weight)?.ptr(),
                out: out.mut_ptr(),
                tokens,
                inputs,
                outputs,
                x_stride,
                out_stride,
                out_pitch,
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            Ok(Prepared {
                // SAFETY: the arrays have these shapes, and strides are even.
                launch: Box::new(move |gpu| unsafe { gpu.launch(product_shape(tokens, heads, outputs), call) }),
                error: Box::new(move |gpu| {
                    let mut truth: Vec<f64> = before.iter().map(|&bits| ty.number(bits)).collect();
                    for (t, h, n) in every([tokens, heads, outputs]) {
                        let row = &x[(t * x_stride + h * inputs) as usize..][..inputs as usize];
                        let matrix = &weight[((h * outputs + n) * inputs) as usize..][..inputs as usize];
                        let products = row.iter().zip(matrix).map(|(&x, &w)| ty.number(x) * ty.number(w));
                        truth[(t * out_stride + h * out_pitch + n) as usize] = products.sum();
                    }
                    let results = gpu.download(out)?.into_iter().map(|bits| ty.number(bits));
                    Ok(relative_error(results, &truth) / rounding(ty))
                }),
            })
        }),
    }
}

/// Rows of queries and keys without the queries' latent vectors. Sizes are in vectors.
pub fn join(tokens: u32, heads: u32, [rotated, rank]: [u32; 2]) -> Case {
    let (size, copied) = (rotated + rank, (heads + 1) * rotated + rank);
    Case {
        kernel: "join_latents",
        shape: format!("{tokens} tokens, {heads} heads, {rotated} and {rank} vectors"),
        floor: Floor { bytes: 32 * u64::from(tokens * copied), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(9);
            let mut rows = |vectors: u32| random.bits(Type::ALL[0], (8 * tokens * vectors) as usize);
            let (query, key, latent, before) =
                (rows(heads * rotated), rows(rotated), rows(rank), rows((heads + 1) * size));
            let out = gpu.upload("out", &before)?;
            let call = join_latents {
                query: gpu.upload("query", &query)?.ptr(),
                key: gpu.upload("key", &key)?.ptr(),
                latent: gpu.upload("latent", &latent)?.ptr(),
                out: out.mut_ptr(),
                tokens,
                heads,
                rotated,
                rank,
            };
            Ok(Prepared {
                // SAFETY: the arrays have these shapes.
                launch: Box::new(move |gpu| unsafe { gpu.launch(join_shape(tokens, copied), call) }),
                error: Box::new(move |gpu| {
                    let mut truth = before.clone();
                    for (t, h, e) in every([tokens, heads + 1, 8 * size]) {
                        let from = match e < 8 * rotated {
                            true if h < heads => query[((t * heads + h) * 8 * rotated + e) as usize],
                            true => key[(t * 8 * rotated + e) as usize],
                            false if h < heads => continue,
                            false => latent[(t * 8 * rank + e - 8 * rotated) as usize],
                        };
                        truth[((t * (heads + 1) + h) * 8 * size + e) as usize] = from;
                    }
                    Ok(exact(&gpu.download(out)?, &truth))
                }),
            })
        }),
    }
}

/// Returns all indices of an array of three dimensions.
fn every([a, b, c]: [u32; 3]) -> impl Iterator<Item = (u32, u32, u32)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}
