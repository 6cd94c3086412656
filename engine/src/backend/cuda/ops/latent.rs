//! The projections between heads and latent vectors.

use cuda_std::launch::DevicePtrMut;
use kernels::floor::Floor;
use kernels::latent::{join_latents, join_shape, multiply_heads, product_shape};
use kernels::layout::VECTOR;
use kernels::with_element;

use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::tensor::{CudaTensor, CudaWeight};
use crate::config::Latent;
use crate::error::Result;
use crate::tensor::HostTensor;

/// The projections between heads and latent vectors.
pub struct CudaLatent {
    sizes: Latent,
    heads: u32,
    /// `[heads][rank, unrotated]`: from the part of a query that is not rotated.
    queries: CudaWeight,
    /// `[heads][value, rank]`: to the head's values.
    values: CudaWeight,
}

/// The columns that receive the results of heads.
struct HeadResults<'a> {
    tensor: &'a CudaTensor,
    /// The first column.
    first: u32,
    /// Distance in elements between heads.
    pitch: u32,
}

impl CudaBackend {
    /// Copies the projections to the device.
    pub(in crate::backend::cuda) fn load_latent(
        &self,
        sizes: Latent,
        queries: Vec<HostTensor>,
        values: Vec<HostTensor>,
    ) -> Result<CudaLatent> {
        let heads = queries.len() as u32;
        Ok(CudaLatent { sizes, heads, queries: self.load_heads(queries)?, values: self.load_heads(values)? })
    }

    /// Computes rows of queries and a key. Each has a rotated part, then a latent vector.
    pub(in crate::backend::cuda) fn join_latent_qkv(
        &self,
        [rotated_query, query]: [&CudaTensor; 2],
        [rotated_key, key]: [&CudaTensor; 2],
        weight: &CudaLatent,
    ) -> CudaTensor {
        let [rotated, rank] = [weight.sizes.rotated, weight.sizes.rank].map(|size| size as u32);
        let (heads, size, tokens) = (weight.heads, rotated + rank, query.rows);
        let out = self.tensor(tokens, (heads + 1) * size);
        let call = join_latents {
            query: rotated_query.ptr().cast_const(),
            key: rotated_key.ptr().cast_const(),
            latent: key.ptr().cast_const(),
            out: out.ptr(),
            tokens,
            heads,
            rotated: rotated / VECTOR,
            rank: rank / VECTOR,
        };
        let copied = (heads + 1) * rotated + rank;
        let floor = || Floor { bytes: 4 * u64::from(tokens) * u64::from(copied), flops: 0 };
        // SAFETY: the rows of all matrices have no gaps, and their parts are whole vectors.
        unsafe { self.queue.launch(join_shape(tokens, copied / VECTOR), call, floor) };
        let results = HeadResults { tensor: &out, first: rotated, pitch: size };
        self.multiply_heads(query, (&weight.queries, heads), results);
        out
    }

    /// Projects the latent vector of each head to the head's values.
    pub(in crate::backend::cuda) fn project_latent_values(&self, x: &CudaTensor, weight: &CudaLatent) -> CudaTensor {
        let value = weight.sizes.value as u32;
        let out = self.tensor(x.rows, weight.heads * value);
        self.multiply_heads(x, (&weight.values, weight.heads), HeadResults { tensor: &out, first: 0, pitch: value });
        out
    }

    /// Multiplies each head of `x` by the head's matrix.
    fn multiply_heads(&self, x: &CudaTensor, (weight, heads): (&CudaWeight, u32), results: HeadResults<'_>) {
        let HeadResults { tensor, first, pitch } = results;
        let (tokens, inputs, outputs) = (x.rows, weight.cols, weight.rows / heads);
        let out: DevicePtrMut<u16> = tensor.ptr();
        let args = multiply_heads {
            x: x.ptr().cast_const(),
            weight: weight.ptr(),
            out: out.offset(first as usize),
            tokens,
            inputs,
            outputs,
            x_stride: x.stride,
            out_stride: tensor.stride,
            out_pitch: pitch,
        };
        let call = with_element!(self.element, T => args.instance::<T>());
        let weights = u64::from(weight.rows) * u64::from(inputs);
        let activations = u64::from(tokens) * u64::from(heads) * u64::from(inputs + outputs);
        let floor = || Floor { bytes: 2 * (weights + activations), flops: 2 * u64::from(tokens) * weights };
        // SAFETY: the backend was created for sizes with kernels, and results are within the rows of `out`.
        unsafe { self.queue.launch(product_shape(tokens, heads, outputs), call, floor) };
    }
}
