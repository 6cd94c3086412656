//! The paper's attention kernels on a decode problem: vLLM's layouts on a device, and one version's launches.

use cuda_std::launch::{Entry, Family};
use kernels::attention::Shape;
use kernels::attention::paper::launch::Version;
use kernels::attention::paper::{THREADS, paged_attention_v1, paged_attention_v2, paged_attention_v2_reduce};
use kernels::layout::Vector;
use launch::Result;

use crate::gpu::{Buffer, Gpu};
use crate::paged::Problem;

/// Elements between the queries of two sequences, where a fused projection has keys and values.
const GAP: usize = 64;

/// A problem on a device, with the kernels of a version.
pub struct Attention {
    version: Version,
    v1: Entry<<paged_attention_v1 as Family>::Args>,
    v2: Entry<<paged_attention_v2 as Family>::Args>,
    merge: Entry<<paged_attention_v2_reduce as Family>::Args>,
    /// Output, queries and the rest, in the order of v1's arguments.
    args: <paged_attention_v1 as Family>::Args,
    head_size: u32,
    block_size: u32,
    /// What comes out.
    pub output: Buffer<u16>,
    /// What v2 leaves for the reduction: sums of values, maxima, sums of weights. NaN, until v2 writes it.
    pub partials: [Buffer<f32>; 3],
}

/// Both versions, with room for sequences of `max_length` tokens.
///
/// # Panics
/// If there are no kernels for the problem's shape.
pub fn versions(problem: &Problem, max_length: u32) -> [Version; 2] {
    let (shape, sequences, window) = (shape(problem), problem.spans.len() as u32, problem.shape.window);
    [Version::v1(shape, sequences, max_length, window), Version::v2(shape, sequences, max_length, window)]
}

/// The problem's heads and blocks.
///
/// # Panics
/// If there are no kernels for them.
pub fn shape(problem: &Problem) -> Shape {
    let shape = problem.shape;
    Shape::new(shape.heads, shape.kv_heads, shape.head_size, shape.block_size)
        .unwrap_or_else(|unsupported| panic!("{unsupported}"))
}

fn instance<F: Family>(labels: &[&str]) -> Entry<F::Args> {
    F::instance(labels).unwrap_or_else(|| panic!("no kernel for {labels:?}"))
}

impl Attention {
    /// Puts a decode problem on a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn upload(gpu: &mut Gpu, problem: &Problem, version: Version) -> Result<Attention> {
        let s = problem.shape;
        let (head_size, block_size) = (s.head_size.to_string(), s.block_size.to_string());
        let labels = [s.ty.label(), &head_size, &block_size];
        let row = (s.heads * s.head_size) as usize;
        let gap = vec![s.ty.nan(); GAP];
        let query: Vec<u16> = problem.query.chunks(row).flat_map(|row| [row, &gap].concat()).collect();
        let (keys, values) = problem.separate();
        let (tables, table_stride) = problem.padded_tables();
        let output = gpu.alloc("output", problem.query.len())?;
        let args = (
            output.mut_ptr(),
            gpu.upload("query", &query)?.ptr(),
            gpu.upload("keys", &keys)?.ptr::<Vector>(),
            gpu.upload("values", &values)?.ptr::<Vector>(),
            gpu.upload("block tables", &tables)?.ptr(),
            gpu.upload("lengths", &problem.contexts())?.ptr(),
            (row + GAP) as u32,
            table_stride,
            s.kv_heads,
            s.window,
            s.scale(),
        );
        let partitions = if let Version::V2 { partitions, .. } = version { partitions } else { 1 };
        let rows = problem.spans.len() * (s.heads * partitions) as usize;
        let partials = [
            gpu.upload("sums of values", &vec![f32::NAN; rows * s.head_size as usize])?,
            gpu.upload("maxima", &vec![f32::NAN; rows])?,
            gpu.upload("sums of weights", &vec![f32::NAN; rows])?,
        ];
        Ok(Attention {
            version,
            v1: instance::<paged_attention_v1>(&labels),
            v2: instance::<paged_attention_v2>(&labels),
            merge: instance::<paged_attention_v2_reduce>(&labels[..1]),
            args,
            head_size: s.head_size,
            block_size: s.block_size,
            output,
            partials,
        })
    }

    /// Launches the version's kernels.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn launch(&self, gpu: &mut Gpu) -> Result<()> {
        self.attend(gpu)?;
        self.reduce(gpu)
    }

    /// Launches v1, or v2 without its reduction.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn attend(&self, gpu: &mut Gpu) -> Result<()> {
        let [values, maxima, sums] = self.partials.map(Buffer::mut_ptr);
        let (_, query, keys, cached, tables, lengths, query_stride, table_stride, kv_heads, window, scale) = self.args;
        match self.version {
            Version::V1(launch) => gpu.launch(self.v1, launch.grid, THREADS, launch.shared, self.args),
            Version::V2 { attend, .. } => {
                let args = (
                    values,
                    maxima,
                    sums,
                    query,
                    keys,
                    cached,
                    tables,
                    lengths,
                    query_stride,
                    table_stride,
                    kv_heads,
                    window,
                    scale,
                );
                gpu.launch(self.v2, attend.grid, THREADS, attend.shared, args)
            }
        }
    }

    /// Launches v2's reduction; of v1, nothing.
    ///
    /// # Errors
    /// [`launch::Error`]
    pub fn reduce(&self, gpu: &mut Gpu) -> Result<()> {
        let Version::V2 { reduce, partitions, .. } = self.version else { return Ok(()) };
        let [values, maxima, sums] = self.partials.map(Buffer::ptr);
        let (output, _, _, _, _, lengths, _, _, _, window, _) = self.args;
        let args = (output, values, maxima, sums, lengths, partitions, self.head_size, self.block_size, window);
        gpu.launch(self.merge, reduce.grid, THREADS, reduce.shared, args)
    }
}
