//! Runs the lesson `minimal_engine` on the emulator and compares its tokens with the engine's.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, missing_docs)]

use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Device, Llm, Options, Prompt};
use examples::Lesson;
use launch::Driver;

// The lesson is a program. The test calls everything but its `main`.
#[allow(dead_code)]
#[path = "../../examples/src/minimal_engine.rs"]
mod minimal_engine;

#[test]
fn the_minimal_engine_generates_the_same_tokens_as_the_engine() {
    let mut lesson = Lesson::new(Driver::emulator().unwrap()).unwrap();
    let stories = minimal_engine::run(&mut lesson).unwrap();
    let options = Options { device: Device::Cpu, kv_memory: Some(1 << 24), ..Options::default() };
    let mut llm = Llm::load(&ModelFiles::bundled(), &options).unwrap();
    for ((prompt, more), story) in minimal_engine::PROMPTS.into_iter().zip(stories) {
        let params = SamplingParams { max_tokens: more, temperature: 0.0, ignore_eos: true, ..Default::default() };
        let completion = llm.generate(&[Prompt::Text(prompt.to_owned())], &params).unwrap().remove(0);
        assert_eq!(story, [completion.prompt_tokens, completion.outputs[0].tokens.clone()].concat(), "{prompt}");
    }
    // Requests end one after the other, and the third starts when the first is done.
    assert!(lesson.text().contains("request 1 is done: Once upon a time"), "{}", lesson.text());
    assert_eq!(lesson.text().matches("is done").count(), 3);
}
