//! Golden models divided among several GPUs. Tokens are golden for as long as on one GPU, and all other outputs are
//! scored the same way.

use engine::Preemption;

use super::*;

/// Models that cannot be divided among this many GPUs, since their heads or feed-forward layers do not divide evenly.
const INDIVISIBLE: &[(&str, usize)] = &[
    ("gpt2", 2),
    ("gpt2", 4),
    ("llama2", 2),
    ("llama2", 4),
    ("opt-350m-like", 4),
    ("opt-bin", 4),
    ("qwen2", 4),
    ("qwen3", 4),
];

fn divided(options: Options, workers: usize) -> Options {
    Options { tensor_parallel_size: workers, ..options }
}

/// Models that always run. The others take a minute.
const SAMPLE: [&str; 2] = ["llama2", "mistral"];

fn assert_divided(models: impl IntoIterator<Item = &'static str>, pick: fn(&str) -> Golden) {
    for (model, workers) in models.into_iter().flat_map(|model| [(model, 2), (model, 4)]) {
        let options = divided(options(DType::F16), workers);
        if INDIVISIBLE.contains(&(model, workers)) {
            let files = ModelFiles::directory(golden_dir(model)).unwrap();
            let error = Llm::load(&files, &options).err().unwrap().to_string();
            assert!(error.contains(&format!("cannot be divided among {workers} workers")), "{error}");
            continue;
        }
        let setup = Setup { name: "f16, divided", dtype: DType::F16, options, pool_tokens: None };
        assert_prompts(model, &setup, &pick(model));
    }
}

#[test]
fn a_sample_of_models_divided_among_gpus() {
    assert_divided(SAMPLE, short);
}

#[test]
#[ignore = "takes a minute; .ci/run has a step for it"]
fn all_other_models_divided_among_gpus() {
    assert_divided(others(&SAMPLE), golden);
}

/// Runs in chunks and blocks of 8, with a pool so small that sequences are preempted.
fn assert_preempted(model: &str, workers: usize, preemption: Preemption, cuda_graphs: bool) {
    let scheduler = SchedulerOptions { max_batch_tokens: 13, preemption, ..options(DType::F16).scheduler };
    let options = Options { cuda_graphs, block_size: 8, scheduler, ..divided(options(DType::F16), workers) };
    let name = "f16, divided, small pool, blocks of 8, chunks of 13";
    assert_setup(model, &Setup { name, dtype: DType::F16, options, pool_tokens: Some(228) });
}

#[test]
fn swapped_out_on_two_gpus() {
    assert_preempted("llama3", 2, Preemption::Swap, true);
}

#[test]
#[ignore = "takes half a minute; .ci/run has a step for it"]
fn swapped_out_on_four_gpus() {
    assert_preempted("opt-pre", 4, Preemption::Swap, false);
}

#[test]
#[ignore = "takes half a minute; .ci/run has a step for it"]
fn recomputed_on_two_gpus() {
    assert_preempted("qwen3", 2, Preemption::Recompute, true);
}

#[test]
fn in_bf16_and_with_the_papers_kernel() {
    let options = Options { attention: AttentionKernels::V1, ..divided(options(DType::Bf16), 2) };
    let setup = Setup { name: "bf16, divided", dtype: DType::Bf16, options, pool_tokens: None };
    assert_prompts("llama3-tied", &setup, &short("llama3-tied"));
}

/// Recorded steps of divided models give the same bits as launched ones.
#[test]
fn recorded_steps_of_several_gpus_give_the_same_outputs() {
    let golden = golden("llama3");
    let requests: Vec<_> = golden.prompts.iter().take(3).map(|p| (Prompt::Tokens(p.ids.clone()), samples())).collect();
    let answers = [true, false].map(|cuda_graphs| {
        let mut llm = load("llama3", &Options { cuda_graphs, ..divided(options(DType::F16), 2) }, None);
        complete(&mut llm, requests.clone()).into_iter().map(|c| c.outputs).collect::<Vec<_>>()
    });
    assert_eq!(answers[0], answers[1]);
}
