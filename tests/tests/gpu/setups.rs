//! Golden models with other kernels, in chunks, preempted, in bf16 and with drafts. In each setup a model or two always
//! run. Together these samples and the sample of `main.rs` include every model. The other models take minutes and have
//! tests of their own.

use engine::DType;
use engine::{AttentionKernels, Options, SchedulerOptions};
use tests::MODELS;

use crate::{Setup, assert_prompts, assert_setup, options, others, short};

/// Runs f16 in blocks of 8 and chunks of 13 tokens, with a pool so small that sequences are preempted.
fn small_pool(name: &'static str, others: Options) -> Setup {
    let scheduler = SchedulerOptions { max_batch_tokens: 13, ..others.scheduler };
    let options = Options { block_size: 8, scheduler, ..others };
    Setup { name, dtype: DType::F16, options, pool_tokens: Some(228) }
}

fn in_both_types(name: &'static str, options: impl Fn(DType) -> Options) -> [Setup; 2] {
    let setup = |dtype| Setup { name, dtype, options: options(dtype), pool_tokens: None };
    [DType::F16, DType::Bf16].map(setup)
}

/// Runs the first prompts. In a small pool all prompts run, and preempt each other.
fn assert_sample(model: &str, setup: &Setup) {
    if setup.pool_tokens.is_none() {
        assert_prompts(model, setup, &short(model));
    } else {
        assert_setup(model, setup);
    }
}

macro_rules! setup_tests {
    ($($name:ident($($sample:literal),*): $setups:expr;)*) => {
        $(mod $name {
            use super::*;

            pub const SAMPLE: &[&str] = &[$($sample),*];

            fn assert(model: &str) {
                $setups.iter().for_each(|setup| assert_setup(model, setup));
            }

            #[test]
            fn with_a_sample_of_models() {
                for (model, setup) in SAMPLE.iter().flat_map(|model| $setups.map(|setup| (model, setup))) {
                    assert_sample(model, &setup);
                }
            }

            #[test]
            #[ignore = "takes a minute; .ci/run has a step for it"]
            fn with_all_other_models() {
                others(SAMPLE).for_each(assert);
            }
        })*

        #[test]
        fn every_model_is_in_a_sample() {
            let sampled = [&crate::SAMPLE[..], $($name::SAMPLE),*].concat();
            assert!(MODELS.iter().all(|model| sampled.contains(model)), "{sampled:?}");
        }
    };
}

setup_tests! {
    chunked_preempted_and_not_recorded("opt-bin"):
        [small_pool("f16, small pool", Options { cuda_graphs: false, ..options(DType::F16) })];
    multiplied_by_hoppers_kernel("gpt2"):
        in_both_types("Hopper's kernel", |dtype| Options { hopper_from: Some(1), ..options(dtype) });
    multiplied_by_hoppers_kernel_for_some_tokens("llama3-tied"):
        in_both_types("Hopper's kernel for some tokens", |dtype| Options { hopper_decode_from: Some(1), ..options(dtype) });
    with_the_papers_first_kernel("opt-pre", "qwen2"):
        [Setup {
            name: "v1",
            dtype: DType::F16,
            options: Options { attention: AttentionKernels::V1, ..options(DType::F16) },
            pool_tokens: None,
        }];
    with_the_papers_second_kernel_chunked_and_preempted("mistral"):
        [small_pool("v2, small pool", Options { attention: AttentionKernels::V2, ..options(DType::F16) })];
    in_bf16_with_drafts("llama2", "qwen3"):
        [Setup {
            name: "bf16",
            dtype: DType::Bf16,
            options: Options {
                block_size: 32,
                scheduler: SchedulerOptions { max_batch_tokens: 48, draft_tokens: 3, ..options(DType::Bf16).scheduler },
                ..options(DType::Bf16)
            },
            pool_tokens: None,
        }];
}
