//! Beam searches of the bundled model, recorded to know which beams survive.

use anyhow::{Context, Result};
use engine::ModelFiles;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::{Llm, Options, Prompt};

use crate::jobs::Progress;
use crate::laboratory::Lab;
use simulator::beam_record::BeamRecord;

/// Number of recorded searches, tokens before each search begins, and tokens that it generates.
const SEARCHES: usize = 16;
const BEFORE: usize = 24;
const TOKENS: usize = 96;

/// Records searches of `width` beams. Each search continues a text that the model sampled.
///
/// # Errors
/// If the model cannot be run.
pub fn record(width: usize, lab: &Lab<'_>) -> Result<BeamRecord> {
    let mut llm = Llm::load(&ModelFiles::bundled(), &Options::default())?;
    let searches = (0..SEARCHES).map(|at| {
        let seed = lab.seed.wrapping_add(at as u64);
        let prompt = text(&mut llm, seed)?;
        let children = search(&mut llm, prompt, width);
        let name = format!("a search of {width} beams");
        (lab.progress)(Progress { name: &name, done: at + 1, of: SEARCHES, unit: "searches" });
        children
    });
    searches.collect::<Result<_>>().map(BeamRecord::new)
}

/// Samples a text from the model.
fn text(llm: &mut Llm, seed: u64) -> Result<Vec<u32>> {
    let params = SamplingParams {
        max_tokens: BEFORE,
        temperature: 1.0,
        seed: Some(seed),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let prompt = Prompt::Text("Once upon a time".into());
    let done = llm.generate(&[prompt], &params)?.pop().context("the model gave no text")?;
    let output = done.outputs.first().context("the model gave no output")?;
    Ok([&done.prompt_tokens[..], &output.tokens].concat())
}

/// Runs a search, and returns how many beams continue each beam, step by step.
fn search(llm: &mut Llm, prompt: Vec<u32>, width: usize) -> Result<Vec<Vec<u8>>> {
    let beam = Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::Never };
    let params = SamplingParams {
        n: width,
        best_of: width,
        max_tokens: TOKENS,
        ignore_eos: true,
        beam: Some(beam),
        ..SamplingParams::default()
    };
    llm.add(&Prompt::Tokens(prompt), params)?;
    // The beams in the order of a replay: children follow the order of their parents.
    let mut beams: Vec<Vec<u32>> = Vec::new();
    let mut steps = Vec::new();
    while llm.has_work() {
        llm.step()?;
        let Some(group) = llm.engine().scheduler().running().first() else { continue };
        let now: Vec<Vec<u32>> = group.running.iter().map(|seq| seq.output().to_vec()).collect();
        if now.len() < width || now[0].is_empty() {
            continue;
        }
        if !beams.is_empty() {
            let continues = |beam: &Vec<u32>, parent: &Vec<u32>| beam[..beam.len() - 1] == parent[..];
            let children_of = |parent| now.iter().filter(|beam| continues(beam, parent)).cloned().collect();
            let children: Vec<Vec<Vec<u32>>> = beams.iter().map(children_of).collect();
            steps.push(children.iter().map(|all| all.len() as u8).collect());
            beams = children.concat();
        } else {
            beams = now;
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use simulator::traces::PublishedLengths;

    #[test]
    fn every_step_keeps_the_number_of_beams() {
        let published = PublishedLengths::default();
        let beam_record = record(4, &Lab { seed: 1, seconds: 1.0, published, progress: &|_| {} }).unwrap();
        let mut has_branched = false;
        for search in 0..SEARCHES as u64 {
            for step in 0..TOKENS {
                let children = beam_record.children(search, step, 4);
                assert_eq!((children.len(), children.iter().sum::<usize>()), (4, 4), "{search} {step}");
                has_branched |= children.contains(&2);
            }
        }
        assert!(has_branched);
    }
}
