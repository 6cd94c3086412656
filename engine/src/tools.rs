//! The engine's parts, for the tools, servers and tests of this repository. They may change without notice.

pub use checkpoint::{config, error, load, mapping, quantised, tensor};
pub use text::{answer, chat, constraint, detokenizer, tokenizer};

macro_rules! parts {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        $($(#[$attribute])* pub mod $name { pub use crate::$name::*; })*
    };
}

parts! {
    /// Adapters.
    adapter,
    /// The trait that a device implements, and its implementations.
    backend,
    /// The input of a step.
    batch,
    /// Pooling of hidden states.
    embedding,
    /// The step: schedule, run, postprocess.
    engine,
    /// Sequence groups.
    group,
    /// The paged KV cache.
    kv,
    /// Dividing a GPU's memory.
    #[cfg(feature = "cuda")]
    memory_plan,
    /// The models.
    model,
    /// Tensor parallelism.
    parallel,
    /// Executing a step.
    runner,
    /// Sampling parameters and the sampler.
    sampling,
    /// Which sequences run.
    scheduler,
    /// Sequences and their outputs.
    sequence,
    /// Counters of an engine.
    stats,
}
