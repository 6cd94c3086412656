//! The minimal engine's model on the host: its weights, and the kernel launches of a step.

use cuda_std::launch::{DevicePtr, DevicePtrMut, LaunchShape};
use engine::tools::load::{ModelFiles, Weights};
use examples::Result;
use workbench::{Buffer, Gpu};

use super::{BLOCK, FIRST_POSITION, HEAD, HIDDEN, attend_blocks, embed, keep, linear, normalize};

/// A weight matrix and its bias on the device, then the number of outputs and inputs. The bias may be null.
#[derive(Clone, Copy)]
struct Matrix(DevicePtr<u32>, DevicePtr<u16>, u32, u32);

/// A layer: two normalisations, and the matrices for queries, keys, values, attention output, and MLP up and down.
struct StoryLayer {
    norms: [[DevicePtr<u16>; 2]; 2],
    matrices: [Matrix; 6],
    cache: [DevicePtrMut<f32>; 2],
}

/// The model on the device, with buffers for a batch.
pub struct StoryModel {
    tokens: DevicePtr<u16>,
    positions: DevicePtr<u16>,
    layers: Vec<StoryLayer>,
    norm: [DevicePtr<u16>; 2],
    /// The number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Buffers with a row per sequence of the batch: hidden state, normalised state, queries, keys, values, attention
    /// output, and the MLP's hidden layer.
    rows: [DevicePtrMut<f32>; 7],
    /// The logit of each token, for each row of the batch.
    pub logits: Buffer<f32>,
}

/// The inputs of a step.
#[derive(Clone, Copy)]
pub struct StoryStep {
    /// The token of each row.
    pub tokens: DevicePtr<u32>,
    /// The position of each row's token.
    pub positions: DevicePtr<u32>,
    /// The block table of each row's sequence, `stride` entries per row.
    pub tables: DevicePtr<u32>,
    /// Entries per row in `tables`.
    pub stride: u32,
    /// Rows of the batch.
    pub rows: u32,
}

/// Blocks in the cache.
pub const BLOCKS: u32 = 12;
/// Maximum sequences per batch.
pub const BATCH: u32 = 2;

impl StoryModel {
    /// Loads the weights of the bundled model.
    pub fn load(gpu: &mut Gpu, files: &ModelFiles) -> Result<StoryModel> {
        let config = files.config()?;
        let mut weights = files.weights(None)?;
        weights.strip_prefix(config.family.weight_prefixes());
        let (wide, vocabulary) = (4 * HIDDEN, config.vocab_size as u32);
        let mut layers = Vec::new();
        for i in 0..config.layers {
            let mut norm = |gpu: &mut Gpu, name: &str| norm(gpu, &mut weights, &format!("layers.{i}.{name}"));
            let norms = [norm(gpu, "self_attn_layer_norm")?, norm(gpu, "final_layer_norm")?];
            let mut matrix = |name: &str, outputs: u32, inputs: u32| -> Result<Matrix> {
                let name = format!("layers.{i}.{name}");
                let matrix = take(gpu, &mut weights, &format!("{name}.weight"), &[outputs, inputs])?.ptr();
                Ok(Matrix(matrix, take(gpu, &mut weights, &format!("{name}.bias"), &[outputs])?.ptr(), outputs, inputs))
            };
            let matrices = [
                matrix("self_attn.q_proj", HIDDEN, HIDDEN)?,
                matrix("self_attn.k_proj", HIDDEN, HIDDEN)?,
                matrix("self_attn.v_proj", HIDDEN, HIDDEN)?,
                matrix("self_attn.o_proj", HIDDEN, HIDDEN)?,
                matrix("fc1", wide, HIDDEN)?,
                matrix("fc2", HIDDEN, wide)?,
            ];
            let size = (BLOCKS * BLOCK * HIDDEN) as usize;
            let cache = [gpu.alloc::<f32>("keys", size)?.mut_ptr(), gpu.alloc::<f32>("values", size)?.mut_ptr()];
            layers.push(StoryLayer { norms, matrices, cache });
        }
        let mut row =
            |name, width: u32| Ok::<_, launch::Error>(gpu.alloc::<f32>(name, (BATCH * width) as usize)?.mut_ptr());
        let rows = [
            row("x", HIDDEN)?,
            row("normalised", HIDDEN)?,
            row("q", HIDDEN)?,
            row("k", HIDDEN)?,
            row("v", HIDDEN)?,
            row("attention", HIDDEN)?,
            row("wide", wide)?,
        ];
        Ok(StoryModel {
            tokens: take(gpu, &mut weights, "embed_tokens.weight", &[vocabulary, HIDDEN])?.ptr(),
            positions: take(
                gpu,
                &mut weights,
                "embed_positions.weight",
                &[config.max_positions as u32 + FIRST_POSITION, HIDDEN],
            )?
            .ptr(),
            norm: norm(gpu, &mut weights, "final_layer_norm")?,
            logits: gpu.alloc("logits", (BATCH * vocabulary) as usize)?,
            layers,
            vocabulary,
            rows,
        })
    }

    /// Launches the kernels of a step, which leave each row's logits in `logits`.
    pub fn forward(&self, gpu: &mut Gpu, step: StoryStep) -> launch::Result<()> {
        let StoryStep { tokens, positions, tables, stride, rows } = step;
        let [x, normal, q, k, v, attended, wide] = self.rows;
        let read = |p: DevicePtrMut<f32>| DevicePtr::from(p);
        let per_row = |threads| LaunchShape::linear(rows, threads);
        let multiply = |gpu: &mut Gpu, y, from, Matrix(weights, bias, outputs, inputs), mode| {
            let shape = LaunchShape::new([outputs / 4, rows, 1], 128);
            // SAFETY: each matrix has these outputs and inputs, and the rows it is used with are as wide.
            unsafe { gpu.launch(shape, linear { y, x: read(from), weights, bias, inputs, mode }) }
        };
        let normalise = |gpu: &mut Gpu, [scale, bias]: [DevicePtr<u16>; 2]| {
            // SAFETY: scale, bias and each row have 192 elements.
            unsafe { gpu.launch(per_row(32), normalize { to: normal, x: read(x), scale, bias }) }
        };
        let (table, places) = (self.tokens, self.positions);
        // SAFETY: tokens are in the vocabulary, and positions are below the model's maximum.
        unsafe { gpu.launch(per_row(HIDDEN), embed { x, tokens, positions, table, places }) }?;
        for layer in &self.layers {
            let ([cache_k, cache_v], [to_q, to_k, to_v, out, up, down]) = (layer.cache, layer.matrices);
            normalise(gpu, layer.norms[0])?;
            multiply(gpu, q, normal, to_q, 0)?;
            multiply(gpu, k, normal, to_k, 0)?;
            multiply(gpu, v, normal, to_v, 0)?;
            let store = keep { cache_k, cache_v, k: read(k), v: read(v), tables, stride, positions };
            let (cache_k, cache_v) = (read(cache_k), read(cache_v));
            let attend = attend_blocks { y: attended, q: read(q), cache_k, cache_v, tables, stride, positions };
            // SAFETY: each sequence has its own blocks for all of its positions, and all of them were stored.
            unsafe {
                gpu.launch(per_row(HIDDEN), store)?;
                gpu.launch(LaunchShape::new([HIDDEN / HEAD, rows, 1], 32), attend)?;
            }
            multiply(gpu, x, attended, out, 2)?;
            normalise(gpu, layer.norms[1])?;
            multiply(gpu, wide, normal, up, 1)?;
            multiply(gpu, x, wide, down, 2)?;
        }
        normalise(gpu, self.norm)?;
        let output = Matrix(self.tokens.cast(), DevicePtr::NULL, self.vocabulary, HIDDEN);
        multiply(gpu, self.logits.mut_ptr(), normal, output, 0)
    }
}

/// Uploads a tensor of the model to the device without converting it.
fn take(gpu: &mut Gpu, weights: &mut Weights, name: &str, shape: &[u32]) -> Result<Buffer<u16>> {
    let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    let tensor = weights.take(name, &shape)?;
    let bits: Vec<u16> = tensor.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    Ok(gpu.upload(name, &bits)?)
}

/// Loads scale and bias of a normalisation.
fn norm(gpu: &mut Gpu, weights: &mut Weights, name: &str) -> Result<[DevicePtr<u16>; 2]> {
    let mut part = |part: &str| take(gpu, weights, &format!("{name}.{part}"), &[HIDDEN]).map(Buffer::ptr);
    Ok([part("weight")?, part("bias")?])
}
