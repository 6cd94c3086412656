//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use engine::PromptLogprobs;
use engine::tools::sampling::MAX_LOGPROBS;
use engine::{Completion, Prompt, StopReason};
use serde::{Deserialize, Serialize};
use tower_http::request_id::RequestId;

use super::answer::{Heading, Usage, collect, max_tokens};
use super::decoding::{Decoding, Outputs};
use super::logprobs::{CompletionLogprobs, Names, Place, ScoredPrompt, scored_prompt};
use super::prompt::PromptField;
use super::stream::{Format, Frames, Piece, Reports, respond, tokens};
use crate::app::{Admission, App};
use crate::body::GenerationBody;
use crate::error::{ApiError, check};
use crate::metrics::reason;
use crate::worker::Work;

/// Default maximum tokens of an output. The number is OpenAI's.
const MAX_TOKENS: usize = 16;

/// The fields that only completions have.
#[derive(Debug, Deserialize)]
pub struct CompletionFields {
    prompt: PromptField,
    max_tokens: Option<usize>,
    /// The number of most likely tokens to report with each token's logprob.
    logprobs: Option<usize>,
    /// Whether each text begins with its prompt.
    echo: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: usize,
    text: std::borrow::Cow<'a, str>,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<ScoredPrompt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

/// Continues prompts.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    GenerationBody(fields, decoding): GenerationBody<CompletionFields, Decoding>,
) -> Result<Response, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    check(fields.logprobs.is_none_or(|k| k <= MAX_LOGPROBS), "logprobs", || {
        format!("logprobs must be at most {MAX_LOGPROBS}")
    })?;
    let echo = fields.echo.unwrap_or(false);
    let prompts = fields.prompt.encode(&app, "prompt", decoding.add_special_tokens.unwrap_or(true)).await?;
    let longest = prompts.iter().map(|p| p.1.len()).max().unwrap_or(0);
    let least = if echo { 0 } else { 1 };
    let max_tokens = max_tokens(&app, ("max_tokens", fields.max_tokens), ("prompt", longest), least, MAX_TOKENS)?;
    let stream = decoding.stream.unwrap_or(false);
    let reports = decoding.reports();
    let scores = decoding.prompt_logprobs.is_some();
    let outputs = Outputs { max_tokens, logprobs: fields.logprobs, echo, ..Outputs::default() };
    let params = admission.within(decoding.params(&app, outputs)).await??;
    let heading = Heading::new(&app, "cmpl", &request, &params);
    let (n, skip_special) = (params.n, params.skip_special_tokens);
    let prompts = prompts.into_iter().map(|(text, tokens)| Prompt::Encoded { text, tokens }).collect();
    let asked = fields.max_tokens.map(|_| "max_tokens");
    let work = Work { prompts, params, field: "prompt", asked, stream };
    if stream {
        let echoes = vec![Echo::none(skip_special); work.prompts.len()];
        let places = vec![Place::new(skip_special); work.prompts.len() * n];
        let ids = |prompt: &Prompt| vec![reports.token_ids.then(|| tokens(prompt).to_vec()); n];
        let prompt_ids = work.prompts.iter().flat_map(ids).collect();
        let chunks = Chunks { app: app.clone(), heading, echo, skip_special, echoes, n, reports, places, prompt_ids };
        return respond(&app, work, admission, reports, chunks).await;
    }
    let answers = collect(&app, work, &admission).await?;
    let usage = Usage::of(&answers);
    heading.log(&usage, false);
    let names = Names { tokenizer: &app.tokenizer, as_ids: reports.tokens_as_ids };
    let choices = answers.iter().enumerate().flat_map(|(prompt, answer)| {
        let Completion { prompt: text, prompt_tokens, prompt_logprobs, .. } = answer;
        let echo = match echo {
            true => Echo::new(text, prompt_tokens, prompt_logprobs.as_ref(), skip_special, names),
            false => Echo::none(skip_special),
        };
        let scored = prompt_logprobs.as_ref().filter(|_| scores);
        choices(names, reports, prompt * n, answer, &echo, scored)
    });
    let answer = Answer {
        id: &heading.id,
        object: "text_completion",
        created: heading.created,
        model: &heading.model,
        choices: choices.collect(),
        usage: Some(Some(usage)),
    };
    Ok(Json(answer).into_response())
}

/// Returns the choices of one prompt, numbered from `first`. Each begins with `echo`.
fn choices<'a>(
    names: Names<'_>,
    reports: Reports,
    first: usize,
    answer: &'a Completion,
    echo: &Echo,
    scored: Option<&PromptLogprobs>,
) -> Vec<Choice<'a>> {
    let choice = |(i, output): (usize, &'a engine::Continuation)| {
        let Echo { text, logprobs, mut end } = echo.clone();
        let logprobs = output.logprobs.as_ref().map(|own| {
            let mut all = logprobs.unwrap_or_default();
            all.extend(own, names, &mut end);
            all
        });
        let finish_reason = Some(reason(output.finish_reason));
        let (text, stop_reason) = ((text + &output.text).into(), output.stop_reason.as_ref());
        let prompt_logprobs = scored.map(|entries| scored_prompt(entries, names.tokenizer));
        let token_ids = reports.token_ids.then_some(output.tokens.as_slice());
        let prompt_token_ids = reports.token_ids.then(|| answer.prompt_tokens.clone());
        let index = first + i;
        Choice { index, text, logprobs, finish_reason, stop_reason, prompt_logprobs, prompt_token_ids, token_ids }
    };
    answer.outputs.iter().enumerate().map(choice).collect()
}

/// A prompt to repeat at the beginning of choices.
#[derive(Clone)]
struct Echo {
    text: String,
    logprobs: Option<CompletionLogprobs>,
    /// The position at which the output's tokens begin.
    end: Place,
}

impl Echo {
    fn none(skip_special: bool) -> Self {
        Echo { text: String::new(), logprobs: None, end: Place::new(skip_special) }
    }

    fn new(
        text: &str,
        tokens: &[u32],
        logprobs: Option<&PromptLogprobs>,
        skip_special: bool,
        names: Names<'_>,
    ) -> Self {
        let mut end = Place::new(skip_special);
        let logprobs = logprobs.map(|l| CompletionLogprobs::of_prompt(tokens, l, names, &mut end));
        Echo { text: text.into(), logprobs, end }
    }
}

/// The format of streamed completions.
struct Chunks {
    app: Arc<App>,
    heading: Heading,
    /// Whether choices begin with their prompts.
    echo: bool,
    /// Whether texts omit special tokens.
    skip_special: bool,
    /// The prompts.
    echoes: Vec<Echo>,
    n: usize,
    reports: Reports,
    /// For each choice, the position of its next token.
    places: Vec<Place>,
    /// For each choice, its prompt's tokens until a chunk includes them.
    prompt_ids: Vec<Option<Vec<u32>>>,
}

impl Chunks {
    fn push(&self, choices: Vec<Choice<'_>>, usage: Option<Usage>, frames: &mut Frames) {
        let Heading { id, created, model } = &self.heading;
        let usage = self.reports.usage.then_some(usage);
        frames.push(&Answer { id, object: "text_completion", created: *created, model, choices, usage });
    }

    /// Pushes a part of one choice.
    fn choice(&mut self, piece: Piece<'_>, logprobs: Option<CompletionLogprobs>, frames: &mut Frames) {
        let Piece { choice: index, text, tokens, usage, finish_reason, stop_reason, .. } = piece;
        let (text, prompt_logprobs, prompt_token_ids) = (text.into(), None, self.prompt_ids[index].take());
        let token_ids = self.reports.token_ids.then_some(tokens);
        let choice =
            Choice { index, text, logprobs, finish_reason, stop_reason, prompt_logprobs, prompt_token_ids, token_ids };
        self.push(vec![choice], usage, frames);
    }

    fn names(&self) -> Names<'_> {
        Names { tokenizer: &self.app.tokenizer, as_ids: self.reports.tokens_as_ids }
    }
}

impl Format for Chunks {
    fn prompt(&mut self, prompt: usize, text: &str, tokens: &[u32], logprobs: Option<&PromptLogprobs>) {
        if self.echo {
            self.echoes[prompt] = Echo::new(text, tokens, logprobs, self.skip_special, self.names());
        }
    }

    fn begin(&mut self, choice: usize, usage: Option<Usage>, frames: &mut Frames) {
        if self.echo {
            let Echo { text, logprobs, end } = self.echoes[choice / self.n].clone();
            self.places[choice] = end;
            let piece = Piece {
                choice,
                text: &text,
                tokens: &[],
                logprobs: &[],
                usage,
                finish_reason: None,
                stop_reason: None,
            };
            self.choice(piece, logprobs, frames);
        }
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let names = Names { tokenizer: &self.app.tokenizer, as_ids: self.reports.tokens_as_ids };
        let place = &mut self.places[piece.choice];
        let logprobs = (!piece.logprobs.is_empty()).then(|| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.extend(piece.logprobs, names, place);
            logprobs
        });
        self.choice(piece, logprobs, frames);
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        self.push(Vec::new(), Some(*usage), frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
