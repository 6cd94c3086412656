//! Prints results to standard output: text as it is generated, or one JSON object per line.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use engine::FinishReason;
use engine::RequestId;
use engine::SamplingParams;
use engine::tools::tokenizer::Tokenizer;
use engine::{Completion, Continuation, Llm};

use crate::args::Args;
use crate::json;

/// Prints completions in the order of their prompts. A single output is streamed.
pub struct Printer {
    json: bool,
    model: String,
    /// Whether prompts are printed before their continuations. False for chat answers.
    echoes: bool,
    logprobs: bool,
    /// Whether the output is streamed. Only a single prompt with a single output is.
    streams: bool,
    /// Bytes of text streamed so far. `last_token` is the prompt's last token until the first output token is printed.
    streamed: usize,
    last_token: Option<u32>,
    ids: Vec<RequestId>,
    /// Index in `ids` of the next completion to print.
    next: usize,
    /// Formatted completions that wait for an earlier one.
    ready: BTreeMap<RequestId, String>,
}

impl Printer {
    /// Creates a printer for the requests `ids` to `model`.
    pub fn new(args: &Args, model: &str, echoes: bool, params: &SamplingParams, ids: Vec<RequestId>) -> Self {
        let streams = !args.json && ids.len() == 1 && params.n == 1 && params.best_of == 1 && params.beam.is_none();
        Printer {
            json: args.json,
            model: model.to_owned(),
            echoes,
            logprobs: params.logprobs.is_some(),
            streams,
            streamed: 0,
            last_token: None,
            ids,
            next: 0,
            ready: BTreeMap::new(),
        }
    }

    /// Prints the prompt before a streamed continuation.
    pub fn begin(&mut self, llm: &Llm) -> Result<()> {
        if let ([id], true) = (self.ids.as_slice(), self.streams && self.echoes)
            && let Some((text, tokens)) = llm.prompt(*id)
        {
            self.last_token = tokens.last().copied();
            put(text)?;
        }
        Ok(())
    }

    /// Prints a token's text if it is streamed.
    pub fn token(&mut self, token: u32, text: &str, tokenizer: &Tokenizer) -> Result<()> {
        if !self.streams {
            return Ok(());
        }
        if let Some(last) = self.last_token.take() {
            put(separator(tokenizer, last, token)?)?;
        }
        self.streamed += text.len();
        put(text)
    }

    /// Prints a completion after all earlier ones. Text that was already streamed is omitted.
    pub fn done(&mut self, completion: &Completion, tokenizer: &Tokenizer) -> Result<()> {
        let printed = if self.json {
            format!("{}\n", json::completion(completion, self.index(completion), &self.model))
        } else if self.streams || was_begun(completion) {
            self.text(completion, tokenizer)?
        } else {
            String::new()
        };
        self.ready.insert(completion.id, printed);
        while let Some(printed) = self.ids.get(self.next).and_then(|id| self.ready.remove(id)) {
            put(&printed)?;
            self.next += 1;
        }
        Ok(())
    }

    fn text(&self, completion: &Completion, tokenizer: &Tokenizer) -> Result<String> {
        let mut page = String::new();
        for (i, output) in completion.outputs.iter().enumerate() {
            if self.streams {
                page.push_str(output.text.get(self.streamed..).unwrap_or_default());
            } else {
                page.push_str(&self.label(completion, i));
                if self.echoes {
                    page.push_str(&completion.prompt);
                    if let (Some(last), Some(first)) = (completion.prompt_tokens.last(), output.tokens.first()) {
                        page.push_str(separator(tokenizer, *last, *first)?);
                    }
                }
                page.push_str(&output.text);
            }
            page.push('\n');
            if self.logprobs {
                page.push_str(&logprobs(output, tokenizer)?);
            }
        }
        Ok(page)
    }

    /// Returns the index of the completion's prompt.
    fn index(&self, completion: &Completion) -> usize {
        self.ids.iter().position(|id| *id == completion.id).unwrap_or(0)
    }

    /// Returns `[prompt]` or `[prompt.output]`, with the score of a beam.
    fn label(&self, completion: &Completion, output: usize) -> String {
        let prompt = self.index(completion) + 1;
        let label = match completion.outputs.len() {
            1 => format!("[{prompt}] "),
            _ => format!("[{prompt}.{}] ", output + 1),
        };
        match completion.outputs[output].score {
            Some(score) => format!("{label}(score {score:.4}) "),
            None => label,
        }
    }
}

/// Whether a completion has anything to print. A request interrupted before it ran has no tokens.
fn was_begun(completion: &Completion) -> bool {
    completion.outputs.iter().any(|output| output.finish_reason != FinishReason::Abort || !output.tokens.is_empty())
}

/// Formats one line per token: its logprob, the token and the most likely alternatives.
fn logprobs(output: &Continuation, tokenizer: &Tokenizer) -> Result<String> {
    let mut lines = String::new();
    for entry in output.logprobs.iter().flatten() {
        let token = |id: u32| tokenizer.decode(&[id], false);
        lines.push_str(&format!("{:>10.4} {:<16?}", entry.logprob, token(entry.token)?));
        for (id, logprob) in &entry.top {
            lines.push_str(&format!("  {:?} {logprob:.4}", token(*id)?));
        }
        lines.push('\n');
    }
    Ok(lines)
}

/// Returns the space between a prompt and its continuation, if there is one. Some tokenizers (SentencePiece) drop the
/// space before the first word of a text that is decoded by itself.
fn separator(tokenizer: &Tokenizer, last: u32, first: u32) -> Result<&'static str> {
    let joint = tokenizer.decode(&[last, first], true)?;
    let alone = tokenizer.decode(&[first], true)?;
    let rest = joint.strip_prefix(&tokenizer.decode(&[last], true)?).unwrap_or_default();
    Ok(if rest.starts_with(' ') && !alone.starts_with(' ') { " " } else { "" })
}

fn put(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
