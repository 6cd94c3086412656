//! Adapters that do not fit the model.

use engine::{Llm, Options};
use tests::adapters::RandomAdapter;

use super::{files, greedy, options, prompt};

fn refused(llm: &Llm, adapter: &RandomAdapter) -> String {
    let directory = tempfile::tempdir().unwrap();
    adapter.write(directory.path());
    let error = llm.adapters().load("name", directory.path()).unwrap_err().to_string();
    assert!(llm.adapters().list().is_empty());
    error
}

#[test]
fn projections_that_the_model_lacks_are_refused_by_name() {
    let llm = Llm::load(&files("llama2"), &options()).unwrap();
    let error = refused(&llm, &RandomAdapter::new(&files("opt-pre"), 1, 2));
    assert!(error.contains("it changes decoder.layers.0.fc1, which the model does not have"), "{error}");
    let error = refused(&llm, &RandomAdapter::new(&files("qwen3"), 1, 2));
    assert!(error.contains("has 64 outputs and 192 inputs, but the model has 96 and 256"), "{error}");
    let experts = Llm::load(&files("qwen2-moe"), &options()).unwrap();
    let error = refused(&experts, &RandomAdapter::new(&files("llama2"), 1, 2));
    assert!(error.contains("which the model does not have or which adapters cannot change"), "{error}");
}

#[test]
fn a_rank_above_the_limit_is_refused() {
    let llm = Llm::load(&files("llama2"), &Options { max_lora_rank: 4, ..options() }).unwrap();
    let error = refused(&llm, &RandomAdapter::new(&files("llama2"), 1, 5));
    assert!(error.ends_with("its rank is 5, but at most 4 is allowed (--max-lora-rank)"), "{error}");
}

#[test]
fn an_adapter_may_change_some_projections_only() {
    let (files, directory) = (files("llama2"), tempfile::tempdir().unwrap());
    RandomAdapter::new(&files, 1, 3).only(&["0.self_attn.q_proj", "1.mlp.up_proj"]).write(directory.path());
    let mut llm = Llm::load(&files, &options()).unwrap();
    let adapter = llm.adapters().load("name", directory.path()).unwrap();
    let tokens =
        |llm: &mut Llm, params| llm.generate(&[prompt(1, 20)], &params).unwrap()[0].outputs[0].logprobs.clone();
    assert_ne!(tokens(&mut llm, greedy(Some(&adapter))), tokens(&mut llm, greedy(None)));
}

#[test]
fn a_gpu_refuses_adapters() {
    let llm = Llm::load(&files("llama2"), &Options { device: engine::Device::Emulator, ..options() }).unwrap();
    let error = refused(&llm, &RandomAdapter::new(&files("llama2"), 1, 2));
    assert!(error.ends_with("adapters need --device cpu for now"), "{error}");
}
