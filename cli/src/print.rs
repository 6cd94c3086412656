//! Standard output: text as it is generated, or one JSON object a line.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use engine::group::RequestId;
use engine::llm::{Completion, Continuation, Llm};
use engine::sampling::SamplingParams;
use engine::sequence::FinishReason;
use engine::tokenizer::Tokenizer;

use crate::args::Args;
use crate::json;

/// Prints completions in the order of their prompts; a single output as it grows.
pub struct Printer {
    json: bool,
    model: String,
    /// Prompts stand before their continuations, unless these are answers.
    echoes: bool,
    logprobs: bool,
    /// The only prompt with its only output is streamed.
    streams: bool,
    /// Bytes of text streamed so far, and the last token before them.
    streamed: usize,
    last_token: Option<u32>,
    ids: Vec<RequestId>,
    /// Position in `ids` of the next completion to print.
    next: usize,
    /// Complete, but not their turn yet: as they will be printed.
    ready: BTreeMap<RequestId, String>,
}

impl Printer {
    /// A printer for the requests `ids` to `model`.
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

    /// Prints the prompt that is about to be continued, if it is streamed.
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

    /// Prints a completion, or what of it was not streamed, when its turn comes.
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

    /// Which prompt it continues.
    fn index(&self, completion: &Completion) -> usize {
        self.ids.iter().position(|id| *id == completion.id).unwrap_or(0)
    }

    /// `[prompt]` or `[prompt.output]`, and a beam's score.
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

/// Whether there is anything to show of it: the end may have come before its turn.
fn was_begun(completion: &Completion) -> bool {
    completion.outputs.iter().any(|output| output.finish_reason != FinishReason::Abort || !output.tokens.is_empty())
}

/// A line for each token: its logprob, the token, and the likeliest in its place.
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

/// What stands between a prompt and its continuation: some tokenizers (SentencePiece) drop the space before a text's
/// first word when the text is decoded by itself.
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
