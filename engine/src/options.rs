//! How an engine is set up.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::kv::{KvDtype, KvLayout, blocks_for};
pub use crate::scheduler::{Preemption, SchedulerOptions};
use crate::tensor::DType;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// A GPU if there is one that can run the model, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this number, counted from 0.
    Cuda(u32),
    /// The emulator of a GPU: for tests and study.
    Emulator,
}

/// Which kernels attend on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionKernels {
    /// Quire's own.
    #[default]
    Quire,
    /// The paper's first, a thread block a sequence and head, over vLLM's cache layout: for study.
    V1,
    /// The paper's second, which splits long sequences.
    V2,
}

/// From `auto`, `cpu`, `cuda`, `cuda:1` or `emulator`; the error is a sentence.
impl FromStr for Device {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            "emulator" => Ok(Device::Emulator),
            _ => match s.strip_prefix("cuda:").and_then(|number| number.parse().ok()) {
                Some(number) => Ok(Device::Cuda(number)),
                None => Err(format!("{s:?} is not a device; auto, cpu, cuda, cuda:1 and emulator are")),
            },
        }
    }
}

impl Device {
    /// Refuses a GPU and the emulator, unless the program was built with them.
    fn check_built(self, with_cuda: bool) -> Result<()> {
        match self {
            Device::Cuda(_) | Device::Emulator if !with_cuda => {
                Err(Error::Device("this program was built without the feature `cuda`".into()))
            }
            _ => Ok(()),
        }
    }
}

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where to run.
    pub device: Device,
    /// Type of the weights. `None` keeps them as stored; so does `F32` on the CPU, since widening as they are used is
    /// exact. A GPU computes in 16-bit types only, and takes weights that are stored in f32 as f16.
    pub dtype: Option<DType>,
    /// Type of the KV cache. `None` on the CPU is f32, the type it computes in, so that 16-bit weights lose nothing more;
    /// a GPU's is that of the weights. In 8 bits there are nearly twice as many blocks as in 16, and outputs change.
    pub kv_dtype: Option<KvDtype>,
    /// Whether weights stay in their files, mapped into memory, where the CPU uses them as they are stored: embeddings, but no
    /// projections. Otherwise all are copied: the files may then be changed or go away.
    pub mmap: bool,
    /// Workers among which the model is divided: each has its part of the weights and of the KV cache.
    pub tensor_parallel_size: usize,
    /// Tokens in a KV block.
    pub block_size: usize,
    /// Bytes for the KV cache, on each GPU where there are several; `None` is on the CPU 4 GiB, on a GPU what is left of its memory, or less where the limits
    /// below can never use as much, or the system refuses it.
    pub kv_memory: Option<usize>,
    /// Bytes of host memory for the swap space; `None` is 4 GiB, or less where the system refuses it, and no more blocks than the
    /// KV cache has. Blocks of requests that are preempted go there, and with prefix caching those that are evicted.
    pub swap_space: Option<usize>,
    /// The part of a GPU's memory that weights, activations and KV cache may take together with what is in use already.
    pub gpu_memory_utilization: f32,
    /// Which kernels attend on a GPU. With the paper's, no CUDA graphs are recorded.
    pub attention: AttentionKernels,
    /// The fewest tokens whose projections are computed by the kernel that is made for Hopper, on such a GPU; `None` is where
    /// it serves best. For tests, and for measuring.
    pub hopper_from: Option<u32>,
    /// The fewest tokens for which projections of up to 64 are computed by Hopper's kernel for some tokens, on such a GPU; `None` is
    /// where it serves best. For tests, and for measuring.
    pub hopper_decode_from: Option<u32>,
    /// Whether a GPU's decode steps are recorded as CUDA graphs.
    pub cuda_graphs: bool,
    /// Whether a GPU may begin a launch before the one ahead of it is over, which the launch then waits for itself: on Hopper, with
    /// a driver for CUDA 12.3 or later. Elsewhere, and without it, launches begin one behind the other.
    pub dependent_launches: bool,
    /// Whether decode steps are computed before any request: a GPU records them as CUDA graphs then, and while it serves only
    /// those with drafts; on the CPU it is one step, for which all weights are read.
    pub warmup: bool,
    /// How requests are scheduled.
    pub scheduler: SchedulerOptions,
    /// CPU threads; `None` is one a core.
    pub threads: Option<usize>,
    /// Whether activations are rounded to bf16 before they meet weights of that type on the CPU, where the processor multiplies
    /// pairs of them (AMX or AVX512_BF16): faster, but logprobs are no more those of f32.
    pub round_activations: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            device: Device::Auto,
            dtype: None,
            kv_dtype: None,
            mmap: true,
            tensor_parallel_size: 1,
            block_size: 16,
            kv_memory: None,
            swap_space: None,
            gpu_memory_utilization: 0.9,
            attention: AttentionKernels::Quire,
            hopper_from: None,
            hopper_decode_from: None,
            cuda_graphs: true,
            dependent_launches: true,
            warmup: false,
            scheduler: SchedulerOptions::default(),
            threads: None,
            round_activations: false,
        }
    }
}

/// Bytes for the KV cache on the CPU, unless the options say otherwise.
pub(crate) const CPU_KV_MEMORY: usize = 4 << 30;
/// Bytes for the swap space, unless the options say otherwise.
const SWAP_SPACE: usize = 4 << 30;
const MAX_BLOCK_SIZE: usize = 1024;
const MAX_THREADS: usize = 1024;
const MAX_WORKERS: usize = 64;

impl Options {
    /// Refuses options that are out of range.
    ///
    /// # Errors
    /// [`Error::Option`] with the first that is, [`Error::Device`] for a device that the program was built without.
    pub fn validate(&self) -> Result<()> {
        self.device.check_built(cfg!(feature = "cuda"))?;
        let check = |ok: bool, why: &str| if ok { Ok(()) } else { Err(Error::Option(why.into())) };
        check((1..=MAX_BLOCK_SIZE).contains(&self.block_size), "block-size must be between 1 and 1024")?;
        check(self.scheduler.max_num_seqs >= 1, "max-num-seqs must be at least 1")?;
        check(self.scheduler.max_batch_tokens >= 1, "max-batch-tokens must be at least 1")?;
        let workers = 1..=MAX_WORKERS;
        check(workers.contains(&self.tensor_parallel_size), "tensor-parallel-size must be between 1 and 64")?;
        check(self.threads.is_none_or(|n| n <= MAX_THREADS), "threads must be at most 1024")?;
        let delay = self.scheduler.delay_factor;
        check(delay >= 0.0 && delay.is_finite(), "delay-factor must be a number not below 0")?;
        let share = self.scheduler.max_request_share;
        check(share > 0.0 && share <= 1.0, "max-request-share must be above 0 and at most 1")?;
        let share = self.gpu_memory_utilization;
        check(share > 0.0 && share <= 1.0, "gpu-memory-utilization must be above 0 and at most 1")
    }

    /// How many blocks the KV cache has, if there are `room` bytes for it unless the options say otherwise. `max_len` is
    /// the longest sequence that the model can have.
    pub(crate) fn num_blocks(&self, layout: &KvLayout, max_len: usize, room: usize) -> Result<usize> {
        let block = layout.block_bytes();
        let usable = blocks_for(max_len, self.block_size).saturating_mul(self.scheduler.max_num_seqs);
        let num_blocks = match self.kv_memory {
            Some(bytes) => bytes / block,
            None => (room / block).min(usable),
        };
        if num_blocks == 0 {
            let have = self.kv_memory.unwrap_or(room);
            let size = self.block_size;
            return Err(Error::Memory(format!(
                "a KV block of {size} tokens takes {block} bytes, but the KV cache gets {have}"
            )));
        }
        // Slots are numbered in 31 bits.
        Ok(num_blocks.min(i32::MAX as usize / self.block_size))
    }

    /// Blocks of the swap space beside a cache of `num_blocks`. More than that are of use for cached blocks alone; and where
    /// requests are recomputed there are some for these only if they were asked for.
    pub(crate) fn swap_blocks(&self, layout: &KvLayout, num_blocks: usize) -> usize {
        let block = layout.block_bytes();
        match (self.scheduler.preemption, self.swap_space) {
            (_, Some(bytes)) if self.scheduler.prefix_caching => bytes / block,
            (Preemption::Recompute, _) => 0,
            (Preemption::Auto | Preemption::Swap, bytes) => (bytes.unwrap_or(SWAP_SPACE) / block).min(num_blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_swap_space_has_room_for_what_may_go_there() {
        let dtype = crate::kv::KvDtype::Float(DType::F32);
        let layout = KvLayout { layers: 1, heads: 1, head_dim: 32, block_size: 4, dtype };
        let blocks = |preemption, prefix_caching, swap_blocks: Option<usize>| {
            let scheduler = SchedulerOptions { preemption, prefix_caching, ..SchedulerOptions::default() };
            let swap_space = swap_blocks.map(|blocks| blocks * layout.block_bytes());
            Options { scheduler, swap_space, ..Options::default() }.swap_blocks(&layout, 100)
        };
        for preemption in [Preemption::Auto, Preemption::Swap] {
            assert_eq!([None, Some(7), Some(500)].map(|swap| blocks(preemption, true, swap)), [100, 7, 500]);
            assert_eq!([None, Some(7), Some(500)].map(|swap| blocks(preemption, false, swap)), [100, 7, 100]);
        }
        assert_eq!([None, Some(7)].map(|swap| blocks(Preemption::Recompute, true, swap)), [0, 7]);
        assert_eq!([None, Some(7)].map(|swap| blocks(Preemption::Recompute, false, swap)), [0, 0]);
    }

    #[test]
    fn a_device_that_was_left_out_is_refused_in_a_sentence() {
        for device in [Device::Cuda(0), Device::Emulator] {
            assert!(device.check_built(true).is_ok());
            let refused = device.check_built(false).unwrap_err().to_string();
            assert_eq!(refused, "no GPU can be used: this program was built without the feature `cuda`");
        }
        assert!(Device::Auto.check_built(false).is_ok() && Device::Cpu.check_built(false).is_ok());
    }
}
