//! Runs requests on an engine without a server, at full speed.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Event, Llm, Prompt};
use loadgen::random::WorkloadRng;
use loadgen::record::{Answer, Record};
use loadgen::workload::Lengths;

use crate::engine_args::EngineArgs;
use crate::{progress, report};

/// A loaded model.
pub struct Loaded {
    /// The model's name.
    pub name: String,
    pub llm: Llm,
}

/// Loads a model and prints notes about the device to standard error.
pub fn load(engine: &EngineArgs) -> Result<Loaded> {
    let prefixes = engine.shared_prefixes()?;
    let options = engine.options()?;
    let files = ModelFiles::resolve(engine.model.as_deref(), true)?;
    let mut llm = Llm::load_with(&files, &options, progress::loading())?;
    report::print_device_notes(&llm);
    for (prefix, file) in prefixes.iter().zip(&engine.shared_prefix) {
        llm.pin_prefix(prefix).with_context(|| format!("shared prefix {file}"))?;
    }
    Ok(Loaded { name: files.name().to_owned(), llm })
}

impl Loaded {
    /// Returns the tokens of the longest possible request.
    pub fn max_len(&self) -> usize {
        self.llm.engine().context_len(&[], &SamplingParams::default())
    }

    /// Answers requests with random prompts. All requests arrive at once, and `params` choose their tokens. Times in
    /// the records are relative to `start`.
    ///
    /// # Errors
    /// If a request is refused or a step fails.
    pub fn answer(
        &mut self,
        requests: impl Iterator<Item = Lengths>,
        params: &SamplingParams,
        random: &mut WorkloadRng,
        start: Instant,
    ) -> Result<Vec<Record>> {
        let vocab_size = self.llm.config().vocab_size;
        let prompts: Vec<_> =
            requests.map(|Lengths { prompt, output }| (random.tokens(prompt, vocab_size), output)).collect();
        let mut arrivals = BTreeMap::new();
        // Requests take turns with the adapters that are given.
        let adapters = self.llm.adapters().list();
        let mut adapters = adapters.iter().cycle();
        for (prompt, max_tokens) in prompts {
            let (arrival, adapter) = (start.elapsed(), adapters.next().cloned());
            let params = SamplingParams { max_tokens, ignore_eos: true, adapter, ..params.clone() };
            arrivals.insert(self.llm.add(&Prompt::Tokens(prompt), params)?, arrival);
        }
        let mut records = Vec::new();
        while self.llm.has_work() {
            for event in self.llm.step()? {
                let Event::Done(done) = event else { continue };
                let Some(arrival) = arrivals.remove(&done.id) else { continue };
                let answer = Answer {
                    first: Some(arrival + done.time_to_first_token),
                    prompt_tokens: done.prompt_tokens.len(),
                    output_tokens: done.outputs.iter().map(|output| output.tokens.len()).sum(),
                    counted: true,
                };
                records.push(Record { arrival, end: arrival + done.time, outcome: Ok(answer) });
            }
        }
        Ok(records)
    }
}
