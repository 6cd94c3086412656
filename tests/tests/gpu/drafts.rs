//! Drafts on the GPU: they do not change tokens, and the decode kernel attends to them.

use emulator::driver::{collect_reports, take_reports};
use engine::KvDtype;
use engine::Stats;

use super::*;

/// Returns parameters for texts that soon repeat themselves, since there are only a few tokens to choose from. With
/// several outputs, the outputs share the prompt's blocks, and copy the last block when they write.
fn repeating(outputs: usize) -> SamplingParams {
    SamplingParams {
        n: outputs,
        best_of: outputs,
        max_tokens: 16,
        temperature: if outputs > 1 { 0.1 } else { 0.0 },
        seed: Some(3),
        logit_bias: [7, 20, 33].map(|token| (token, 60.0)).into(),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

/// The outputs, the engine's statistics, and the kernels of the attention launches.
struct Run {
    outputs: Vec<Vec<Vec<u32>>>,
    stats: Stats,
    attended: Vec<String>,
}

fn run(model: &str, options: &Options) -> Run {
    let mut llm = load(model, options, None);
    let prompts = golden(model).prompts;
    let requests: Vec<_> = prompts
        .iter()
        .take(4)
        .enumerate()
        .map(|(i, p)| (Prompt::Tokens(p.ids.clone()), repeating(1 + 2 * (i % 2))))
        .collect();
    let is_emulated = options.device == Device::Emulator;
    if is_emulated {
        collect_reports(true).unwrap();
    }
    let done = complete(&mut llm, requests);
    let outputs = done.into_iter().map(|c| c.outputs.into_iter().map(|output| output.tokens).collect()).collect();
    let launched = if is_emulated { take_reports().unwrap() } else { Vec::new() };
    let attended = launched.into_iter().map(|launch| launch.kernel).filter(|name| name.starts_with("paged_")).collect();
    Run { outputs, stats: llm.stats(), attended }
}

/// Asserts that drafts of these lengths do not change outputs, and that `kernel` attends to drafts of up to `most`
/// tokens.
fn assert_drafted(model: &str, options: &Options, kernel: &str, most: usize, lengths: &[usize]) {
    let with = |draft_tokens| {
        let scheduler = SchedulerOptions { draft_tokens, ..options.scheduler };
        run(model, &Options { scheduler, ..options.clone() })
    };
    let plain = with(0);
    for &draft_tokens in lengths {
        let drafted = with(draft_tokens);
        let at = format!("{model}, {:?}, {:?}, drafts of {draft_tokens}", options.dtype, options.kv_dtype);
        assert_eq!(drafted.outputs, plain.outputs, "{at}");
        let Stats { accepted_tokens, copied_blocks, steps, .. } = drafted.stats;
        assert!(accepted_tokens > 0 && steps < plain.stats.steps, "{at}: {:?}", drafted.stats);
        assert!(copied_blocks > 0, "{at}: no block was copied");
        if options.device == Device::Emulator {
            let count = |run: &Run, name: &str| run.attended.iter().filter(|kernel| kernel.starts_with(name)).count();
            let prefills = [&drafted, &plain].map(|run| count(run, "paged_prefill"));
            assert_eq!(
                prefills[0] == prefills[1],
                draft_tokens <= most,
                "{at}: {prefills:?} launches for prompts, and drafts"
            );
            assert!(count(&drafted, kernel) > 0, "{at}: {:?}", drafted.attended);
        }
    }
}

/// A model, the type of its cache, the kernel that attends to drafts, the longest drafts it is used for, and lengths.
type Case = (&'static str, Option<KvDtype>, &'static str, usize, &'static [usize]);

fn assert_cases(cases: &[Case]) {
    for &(model, kv_dtype, kernel, most, lengths) in cases {
        assert_drafted(model, &Options { kv_dtype, ..options(DType::F16) }, kernel, most, lengths);
    }
}

#[test]
fn drafts_do_not_change_tokens() {
    assert_cases(&[
        ("opt-350m-like", None, "paged_attention_f16_64_8", 7, &[7]),
        ("qwen3", Some(KvDtype::Int8), "paged_attention_f16int8_128_8", 7, &[3]),
        // Up to three drafts. With eight tokens at once, most blocks of a small device would read more than with the
        // prefill kernel.
        ("llama3", Some(KvDtype::Fp8), "paged_attention_f16fp8_32_8", 3, &[3, 7]),
    ]);
}

#[test]
#[ignore = "takes ten seconds; .ci/run has a step for it"]
fn drafts_do_not_change_tokens_of_other_models() {
    assert_cases(&[
        ("opt-350m-like", None, "paged_attention_f16_64_8", 7, &[3]),
        ("qwen3", None, "paged_attention_f16_128_16", 7, &[7]),
        ("mistral", None, "paged_attention_f16_", 7, &[7]),
    ]);
}

fn assert_recorded_drafts_are_equal(model: &str) {
    let scheduler = SchedulerOptions { draft_tokens: 5, ..options(DType::F16).scheduler };
    let [recorded, eager] =
        [true, false].map(|cuda_graphs| run(model, &Options { cuda_graphs, scheduler, ..options(DType::F16) }));
    assert!(recorded.stats.accepted_tokens > 0, "{model}");
    assert_eq!((recorded.outputs, recorded.attended), (eager.outputs, eager.attended), "{model}");
}

#[test]
fn recorded_drafts_give_the_same_outputs() {
    assert_recorded_drafts_are_equal("llama3");
}

#[test]
#[ignore = "takes a few seconds; .ci/run has a step for it"]
fn recorded_drafts_with_a_window_give_the_same_outputs() {
    assert_recorded_drafts_are_equal("mistral");
}
