//! Options of an engine.

use std::collections::HashSet;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::kv::{CacheGroup, KvDtype, KvLayout, blocks_for, capacity};
use crate::parallel::Shard;
pub use crate::scheduler::{Preemption, SchedulerOptions, SchedulingPolicy};
use crate::tensor::DType;

/// The device that a model runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// A GPU if there is one that can run the model, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this index.
    Cuda(u32),
    /// The GPU emulator, for tests and study.
    Emulator,
}

/// The attention kernels that a GPU uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionKernels {
    /// Quire's kernels.
    #[default]
    Quire,
    /// The paper's first kernel, one thread block per sequence and head, over vLLM's cache layout. For study.
    V1,
    /// The paper's second kernel, which splits long sequences.
    V2,
}

/// Parses `auto`, `cpu`, `cuda`, `cuda:1` or `emulator`. The error is a full sentence.
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
    /// Rejects a GPU or the emulator if the program was built without them.
    fn check_built(self, with_cuda: bool) -> Result<()> {
        match self {
            Device::Cuda(_) | Device::Emulator if !with_cuda => {
                Err(Error::Device("this program was built without the feature `cuda`".into()))
            }
            _ => Ok(()),
        }
    }
}

/// Options of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The device to run on.
    pub device: Device,
    /// Type of the weights. `None` keeps them as stored. `F32` on the CPU does so too, because widening them on use is
    /// exact. A GPU computes only in 16-bit types and converts weights stored in f32 to f16.
    pub dtype: Option<DType>,
    /// Type of the KV cache. `None` means f32 on the CPU, the type it computes in, so the cache adds no rounding error.
    /// On a GPU it means the type of the weights. An 8-bit cache has nearly twice as many blocks as a 16-bit one, and
    /// changes the outputs.
    pub kv_dtype: Option<KvDtype>,
    /// Whether weights stay in their memory-mapped files if the CPU uses them in the stored form. This applies to
    /// embeddings, not to projections. If false, all weights are copied, and the files may be changed or deleted.
    pub mmap: bool,
    /// Number of workers that the model is divided among. Each has a part of the weights and of the KV cache.
    pub tensor_parallel_size: usize,
    /// Whether each worker has whole experts. Otherwise each has a part of every expert. Only for models with experts.
    pub expert_parallel: bool,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Bytes for the KV cache, per GPU. `None` means 4 GiB on the CPU and the remaining memory on a GPU. It is less if
    /// the limits below cannot use as much, or if the system refuses to allocate it.
    pub kv_memory: Option<usize>,
    /// Bytes of host memory for the swap space. `None` means 4 GiB, or less if the system refuses it, but no more
    /// blocks than the KV cache has. The swap space receives the blocks of preempted requests and, with prefix caching,
    /// evicted blocks.
    pub swap_space: Option<usize>,
    /// Fraction of a GPU's memory that may be in use in total: weights, activations, KV cache, and memory in use before
    /// the start.
    pub gpu_memory_utilization: f32,
    /// The attention kernels that a GPU uses. With the paper's kernels, no CUDA graphs are recorded.
    pub attention: AttentionKernels,
    /// On a Hopper GPU, projections of at least this many tokens use the Hopper kernel. So do 16-bit experts that have half
    /// as many tokens on average. `None` means the fastest choice. For tests and measurements.
    pub hopper_from: Option<u32>,
    /// On a Hopper GPU, projections of at least this many and at most 64 tokens use Hopper's decode kernel. `None`
    /// means the fastest choice. For tests and measurements.
    pub hopper_decode_from: Option<u32>,
    /// On a GPU, layers that keep a state compute sequences with at least this many new tokens in chunks, and others token
    /// by token. At least 2. `None` means the fastest choice. For tests and measurements.
    pub chunked_states_from: Option<u32>,
    /// Whether a GPU's decode steps are recorded as CUDA graphs.
    pub cuda_graphs: bool,
    /// Whether a GPU may start a launch before the previous one is done (programmatic dependent launch). The launch
    /// then waits inside the kernel. Needs Hopper and a driver for CUDA 12.3 or later. Otherwise launches run strictly
    /// one after the other.
    pub dependent_launches: bool,
    /// Whether decode steps are computed before any request. A GPU then records them as CUDA graphs, and later records
    /// only steps with drafts. The CPU computes one step, which reads all weights.
    pub warmup: bool,
    /// Adapters to load at start: the names that requests use, and PEFT directories or GGUF files.
    pub lora_modules: Vec<(String, PathBuf)>,
    /// The highest rank that adapters may have.
    pub max_lora_rank: usize,
    /// Scheduling options.
    pub scheduler: SchedulerOptions,
    /// CPU threads. `None` means one per core.
    pub threads: Option<usize>,
    /// Whether the CPU rounds activations to bf16 for products with bf16 weights, if it can multiply pairs of them (AMX
    /// or AVX512_BF16). This is faster, but logprobs differ from those computed in f32.
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
            expert_parallel: false,
            block_size: 16,
            kv_memory: None,
            swap_space: None,
            gpu_memory_utilization: 0.9,
            attention: AttentionKernels::Quire,
            hopper_from: None,
            hopper_decode_from: None,
            chunked_states_from: None,
            cuda_graphs: true,
            dependent_launches: true,
            warmup: false,
            lora_modules: Vec::new(),
            max_lora_rank: 64,
            scheduler: SchedulerOptions::default(),
            threads: None,
            round_activations: false,
        }
    }
}

/// Default size of the KV cache on the CPU, in bytes.
pub(crate) const CPU_KV_MEMORY: usize = 4 << 30;
/// Default size of the swap space, in bytes.
const SWAP_SPACE: usize = 4 << 30;
const MAX_BLOCK_SIZE: usize = 1024;
const MAX_THREADS: usize = 1024;
const MAX_WORKERS: usize = 64;

impl Options {
    /// Rejects options that are out of range.
    ///
    /// # Errors
    /// [`Error::Option`] for the first option out of range, [`Error::Device`] for a device that the program was built
    /// without.
    pub fn validate(&self) -> Result<()> {
        self.device.check_built(cfg!(feature = "cuda"))?;
        let check = |ok: bool, why: &str| if ok { Ok(()) } else { Err(Error::Option(why.into())) };
        check((1..=MAX_BLOCK_SIZE).contains(&self.block_size), "block-size must be between 1 and 1024")?;
        check(self.scheduler.max_num_seqs >= 1, "max-num-seqs must be at least 1")?;
        check(self.scheduler.max_loras >= 1, "max-loras must be at least 1")?;
        check(self.scheduler.max_batch_tokens >= 1, "max-batch-tokens must be at least 1")?;
        self.check_lora_names()?;
        let workers = 1..=MAX_WORKERS;
        check(workers.contains(&self.tensor_parallel_size), "tensor-parallel-size must be between 1 and 64")?;
        check(self.threads.is_none_or(|n| n <= MAX_THREADS), "threads must be at most 1024")?;
        let delay = self.scheduler.delay_factor;
        check(delay >= 0.0 && delay.is_finite(), "delay-factor must be a number not below 0")?;
        let share = self.scheduler.max_request_share;
        check(share > 0.0 && share <= 1.0, "max-request-share must be above 0 and at most 1")?;
        let most = self.scheduler.min_priority;
        check(
            most.is_none_or(|most| most <= 0),
            "min-priority must be at most 0, the priority of requests without one",
        )?;
        let share = self.gpu_memory_utilization;
        check(share > 0.0 && share <= 1.0, "gpu-memory-utilization must be above 0 and at most 1")
    }

    /// Rejects adapters with the same name.
    fn check_lora_names(&self) -> Result<()> {
        let mut seen = HashSet::new();
        match self.lora_modules.iter().find(|(name, _)| !seen.insert(name)) {
            Some((name, _)) => Err(Error::Option(format!("lora-modules has two adapters with the name {name}"))),
            None => Ok(()),
        }
    }

    /// The part of the model that a worker computes.
    pub(crate) fn shard(&self, rank: usize) -> Shard {
        Shard { rank, of: self.tensor_parallel_size, whole_experts: self.expert_parallel }
    }

    /// The number of pages in the KV cache. `room` is the number of bytes for it if the options set none. `max_len` is
    /// the longest sequence that the model supports.
    pub(crate) fn num_blocks(&self, layout: &KvLayout, max_len: usize, room: usize) -> Result<usize> {
        let (page, groups, size) = (layout.page_bytes(), layout.cache_groups(), self.block_size);
        let longest = match groups.len() {
            1 => blocks_for(max_len, size),
            _ => {
                let chunk = self.scheduler.max_batch_tokens;
                capacity::pages_for(&groups, &capacity::blocks_at_once(&groups, size, max_len, chunk))
            }
        };
        let num_pages = match self.kv_memory {
            Some(bytes) => bytes / page,
            None => (room / page).min(longest.saturating_mul(self.scheduler.max_num_seqs)),
        };
        if num_pages < groups.len() {
            let have = self.kv_memory.unwrap_or(room);
            return Err(Error::Memory(match groups.len() {
                1 => format!("a KV block of {size} tokens takes {page} bytes, but the KV cache gets {have}"),
                count => format!(
                    "a page of KV blocks of {size} tokens takes {page} bytes, and the layers need {count} pages, but the \
                     KV cache gets {have} bytes"
                ),
            }));
        }
        // Slot numbers have 31 bits.
        let slots = |group: &CacheGroup| group.blocks_per_page * group.id_step * size;
        Ok(num_pages.min(i32::MAX as usize / groups.iter().map(slots).max().unwrap_or(1)))
    }

    /// The number of pages in the swap space, for a cache of `num_blocks` pages. Preempted groups need at most
    /// `num_blocks`. Only cached blocks can use more. If preempted groups are recomputed, there is a swap space only if
    /// the options set its size and prefix caching is on.
    pub(crate) fn swap_blocks(&self, layout: &KvLayout, num_blocks: usize) -> usize {
        let page = layout.page_bytes();
        match (self.scheduler.preemption, self.swap_space) {
            (_, Some(bytes)) if self.scheduler.prefix_caching => bytes / page,
            (Preemption::Recompute, _) => 0,
            (Preemption::Auto | Preemption::Swap, bytes) => (bytes.unwrap_or(SWAP_SPACE) / page).min(num_blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_swap_space_follows_the_options() {
        let dtype = crate::kv::KvDtype::Float(DType::F32);
        let layout = KvLayout::uniform(1, 1, 32, 4, dtype);
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
    fn a_device_missing_from_the_build_is_refused() {
        for device in [Device::Cuda(0), Device::Emulator] {
            assert!(device.check_built(true).is_ok());
            let refused = device.check_built(false).unwrap_err().to_string();
            assert_eq!(refused, "no GPU can be used: this program was built without the feature `cuda`");
        }
        assert!(Device::Auto.check_built(false).is_ok() && Device::Cpu.check_built(false).is_ok());
    }
}
