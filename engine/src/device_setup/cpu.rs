//! Loading a model onto the CPU, whole or divided among workers.

use super::host_memory::{experts_on_disk, host_memory};
use super::{LoadedModel, kv_layout, no_drafts, unloaded};
use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuKvCache};
use crate::config::ModelConfig;
use crate::device_info::DeviceInfo;
use crate::error::{Error, Result};
use crate::kv::{KvDtype, KvLayout, capacity};
use crate::load::Weights;
use crate::model;
use crate::options::{AttentionKernels, CPU_KV_MEMORY, Options};
use crate::parallel::{ParallelRunner, RankGroup};
use crate::runner::{ModelRunner, Runner};
use crate::tensor::DType;

/// Loads a model onto the CPU. The first worker loads `weights`, and every other worker calls `open` for its own.
/// `note` is a note for the user, for example why no GPU is used.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::Option`] or [`Error::Memory`] if the model cannot run there.
pub(super) fn load_model(
    config: &ModelConfig,
    weights: Weights,
    mut open: impl FnMut() -> Result<Weights>,
    options: &Options,
    note: Option<String>,
) -> Result<LoadedModel> {
    if options.attention != AttentionKernels::Quire {
        return Err(Error::Option("attention: v1 and v2 need a GPU or the emulator".into()));
    }
    let of = options.tensor_parallel_size;
    let shard = options.shard(0);
    shard.config(config)?;
    let part = kv_layout(config, shard, options, options.kv_dtype.unwrap_or(KvDtype::Float(DType::F32)))?;
    // The workers share the machine's memory.
    let layout = part.clone().of_workers(of);
    let num_blocks = options.num_blocks(&layout, config.max_positions, CPU_KV_MEMORY)?;
    let swap_blocks = options.swap_blocks(&layout, num_blocks);
    let threads = if of == 1 { options.threads } else { Some(threads_per_worker(options)) };
    let on_disk = experts_on_disk(config, weights.bytes(None), host_memory());
    let backend = || -> Result<CpuBackend> {
        let backend = CpuBackend::new(threads)?;
        let backend = if options.round_activations { backend.with_rounded_activations() } else { backend };
        Ok(if on_disk.is_some() { backend.with_stored_experts() } else { backend })
    };
    let first = backend()?;
    let Reserved { mut caches, num_blocks, swap_blocks, note: shortage } =
        reserve(&first, part, of, (num_blocks, swap_blocks), options)?;
    // With a window, sequences can be longer than the cache, because blocks are freed as the window slides.
    let groups = layout.cache_groups();
    let longest = capacity::longest(config.max_positions, |len| {
        let counts = capacity::blocks_at_once(&groups, options.block_size, len, 1);
        capacity::pages_for(&groups, &counts) <= num_blocks
    });
    let rounded = options.dtype.filter(|&dtype| dtype != DType::F32);
    let dtype = rounded.unwrap_or(weights.dtype());
    let quantised = if rounded.is_some() { Vec::new() } else { weights.quantised().to_vec() };
    let widened = (weights.widened() > 0).then(|| {
        let count = weights.widened();
        format!("{count} quantised matrices become f32 in memory because their group size is not a multiple of 32")
    });
    let unrounded = (options.round_activations && !first.rounds_activations())
        .then(|| "activations stay in f32 because this processor does not multiply pairs of bf16 numbers".to_string());
    let has_scales = || weights.names().any(|name| name.ends_with(".k_scale") || name.ends_with(".v_scale"));
    let unscaled = (matches!(layout.dtype, KvDtype::Int8 | KvDtype::Fp8) && has_scales()).then(|| {
        "the checkpoint's scales of keys and values (k_scale, v_scale) are not used because each head of each token has its own scales"
            .to_string()
    });
    let notes = note
        .into_iter()
        .chain(unloaded(config))
        .chain(no_drafts(&layout, options))
        .chain(shortage)
        .chain(on_disk.clone())
        .chain(widened)
        .chain(unrounded)
        .chain(unscaled)
        .collect();
    let device = DeviceInfo { name: "CPU".into(), dtype, quantised, memory: None, notes };

    let group = RankGroup::new(of);
    let mut load = |backend: CpuBackend, mut weights: Weights| -> Result<ModelRunner<CpuBackend>> {
        let model = model::load(&backend, config, &mut weights, longest)?;
        let cache = caches.pop().unwrap_or_else(|| unreachable!("there is a cache for each worker"));
        Ok(ModelRunner::new(backend, model, cache))
    };
    let runner: Box<dyn Runner> = if of == 1 {
        Box::new(load(first, weights)?)
    } else {
        let rank = |rank| group.rank(rank).with_whole_experts(options.expert_parallel);
        let first = load(first.with_rank(rank(0)), weights)?;
        let others = (1..of).map(|other| load(backend()?.with_rank(rank(other)), open()?));
        let others = others.collect::<Result<Vec<_>>>()?;
        Box::new(ParallelRunner::new(first, others, group)?)
    };
    Ok(LoadedModel { runner, layout, num_blocks, swap_blocks, device })
}

/// Threads per worker, such that all workers together use as many as the options specify.
fn threads_per_worker(options: &Options) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    (options.threads.unwrap_or_else(cores) / options.tensor_parallel_size).max(1)
}

/// The workers' caches, their numbers of blocks, and a note if these are fewer than requested.
struct Reserved {
    caches: Vec<CpuKvCache>,
    num_blocks: usize,
    swap_blocks: usize,
    note: Option<String>,
}

/// Allocates caches for `of` workers with the requested numbers of blocks in the cache and the swap space. If the
/// system refuses and the options do not insist on the sizes, allocates fewer and returns a note.
fn reserve(
    backend: &CpuBackend,
    layout: KvLayout,
    of: usize,
    wanted: (usize, usize),
    options: &Options,
) -> Result<Reserved> {
    let (mut blocks, mut refusal) = (wanted, None);
    loop {
        let caches = (0..of).map(|_| backend.kv_cache(layout.clone(), blocks.0, blocks.1)).collect::<Result<Vec<_>>>();
        let error = match caches {
            Ok(caches) => {
                let mib = |blocks: usize| (of * blocks * layout.page_bytes()) >> 20;
                let note = refusal.map(|why: String| {
                    let (kv, swap) = (mib(blocks.0), mib(blocks.1));
                    format!(
                        "the KV cache has {kv} MiB and the swap space {swap} because the system refuses more: {why}"
                    )
                });
                return Ok(Reserved { caches, num_blocks: blocks.0, swap_blocks: blocks.1, note });
            }
            Err(error) => error,
        };
        let num_blocks = if options.kv_memory.is_none() { blocks.0.div_ceil(2) } else { blocks.0 };
        let swap_blocks = if options.swap_space.is_none() { blocks.1 / 2 } else { blocks.1 };
        match error {
            Error::Memory(why) if (num_blocks, swap_blocks) != blocks => refusal = refusal.or(Some(why)),
            error => return Err(error),
        }
        blocks = (num_blocks, if options.swap_space.is_none() { swap_blocks.min(num_blocks) } else { swap_blocks });
    }
}
