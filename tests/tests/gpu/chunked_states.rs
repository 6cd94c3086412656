//! Layers that keep a state, computed in chunks. Prompts of these tests are shorter than the prompts for which the engine
//! takes chunks by itself.

use engine::{DType, Options, SchedulerOptions};

use crate::families::{assert_every, assert_family};
use crate::options;

/// Computes all prompts of two or more tokens in chunks.
fn chunked(dtype: DType) -> Options {
    Options { chunked_states_from: Some(2), ..options(dtype) }
}

/// A delta net and Mamba-2 in prompts of 17 and 100 tokens.
#[test]
fn in_one_batch() {
    for family in ["qwen3-next", "granite4-dense"] {
        assert_every(2, family, DType::F16, &chunked(DType::F16));
    }
}

/// Steps of 48 tokens, and blocks that end within tiles.
#[test]
#[ignore = "takes a minute; .ci/run has a step for it"]
fn in_bf16_and_in_parts() {
    for family in ["qwen3.5", "qwen3.5-moe", "qwen3-next", "granite4", "granite4-dense"] {
        let scheduler = SchedulerOptions { max_batch_tokens: 48, ..SchedulerOptions::default() };
        assert_family(family, DType::Bf16, &Options { block_size: 16, scheduler, ..chunked(DType::Bf16) });
    }
}

#[test]
#[ignore = "takes a minute; .ci/run has a step for it"]
fn on_two_gpus() {
    for family in ["qwen3.5", "granite4-dense"] {
        assert_family(family, DType::F16, &Options { tensor_parallel_size: 2, ..chunked(DType::F16) });
    }
}
