//! Experts whose products use Hopper's kernel for many tokens. Steps of these tests have fewer tokens than the engine
//! demands for it by itself.

use engine::{DType, Options, SchedulerOptions};

use crate::families::{EXPERTS, assert_every, assert_family};
use crate::options;

/// Multiplies all tokens with Hopper's kernel.
fn on_hopper(dtype: DType) -> Options {
    Options { hopper_from: Some(1), ..options(dtype) }
}

/// Prompts of 17 and 100 tokens, and answers.
#[test]
fn in_one_batch() {
    assert_every(2, "qwen3-moe", DType::F16, &on_hopper(DType::F16));
}

/// Steps of 48 tokens.
#[test]
#[ignore = "takes a minute; .ci/run has a step for it"]
fn in_bf16_and_in_parts() {
    for family in EXPERTS {
        let scheduler = SchedulerOptions { max_batch_tokens: 48, ..SchedulerOptions::default() };
        assert_family(family, DType::Bf16, &Options { scheduler, ..on_hopper(DType::Bf16) });
    }
}

/// A worker has whole experts, and ignores the slots of others.
#[test]
#[ignore = "takes half a minute; .ci/run has a step for it"]
fn with_whole_experts_on_two_gpus() {
    for family in ["mixtral", "gpt-oss"] {
        let options = Options { tensor_parallel_size: 2, expert_parallel: true, ..on_hopper(DType::F16) };
        assert_family(family, DType::F16, &options);
    }
}
