//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use engine::llm::{Completion, Prompt};
use engine::sampling::MAX_LOGPROBS;
use serde::{Deserialize, Serialize};
use tower_http::request_id::RequestId;

use super::answer::{Heading, Usage, collect, max_tokens};
use super::decoding::{Decoding, check};
use super::logprobs::CompletionLogprobs;
use super::stream::{Format, Frames, Piece, respond};
use crate::app::{Admission, App};
use crate::body::Body2;
use crate::error::ApiError;
use crate::metrics::reason;
use crate::worker::Work;

/// Tokens an output gets when the request does not say; OpenAI's number.
const MAX_TOKENS: usize = 16;

/// The fields that only completions have.
#[derive(Debug, Deserialize)]
pub struct Fields {
    prompt: PromptField,
    max_tokens: Option<usize>,
    /// Report this many of the likeliest tokens with each token's logprob.
    logprobs: Option<usize>,
    /// Begin each text with its prompt.
    echo: Option<bool>,
}

/// One prompt or several, as texts or as tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string, a list of strings, a list of token ids or a list of such lists")]
enum PromptField {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
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
}

/// Continues texts.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    Body2(fields, decoding): Body2<Fields, Decoding>,
) -> Result<Response, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    check(fields.logprobs.is_none_or(|k| k <= MAX_LOGPROBS), "logprobs", || {
        format!("logprobs must be at most {MAX_LOGPROBS}")
    })?;
    let echo = fields.echo.unwrap_or(false);
    check(!echo || fields.logprobs.is_none(), "logprobs", || {
        "logprobs of a prompt are not computed: logprobs cannot be used with echo".into()
    })?;
    let prompts = fields.prompt.encode(&app).await?;
    let longest = prompts.iter().map(|p| p.1.len()).max().unwrap_or(0);
    let max_tokens = max_tokens(&app, ("max_tokens", fields.max_tokens), longest, MAX_TOKENS)?;
    let stream = decoding.stream.unwrap_or(false);
    let include_usage = decoding.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
    let params = decoding.params(&app, max_tokens, fields.logprobs)?;
    let heading = Heading::new(&app, "cmpl", &request);
    let texts = if echo { prompts.iter().map(|p| p.0.clone()).collect() } else { Vec::new() };
    let n = params.n;
    let prompts = prompts.into_iter().map(|(text, tokens)| Prompt::Encoded { text, tokens }).collect();
    let work = Work { prompts, params, stream };
    if stream {
        let offsets = vec![0; work.prompts.len() * n];
        let chunks = Chunks { app: app.clone(), heading, echo: texts, n, include_usage, offsets };
        return respond(&app, work, admission, include_usage, chunks).await;
    }
    let answers = collect(&app, work, &admission).await?;
    let mut usage = Usage::default();
    answers.iter().for_each(|answer| usage.add(answer));
    heading.log(&usage, false);
    let choices = answers.iter().enumerate().flat_map(|(prompt, answer)| choices(&app, prompt * n, answer, echo));
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

/// The choices of one prompt, numbered from `first`.
fn choices<'a>(app: &App, first: usize, answer: &'a Completion, echo: bool) -> Vec<Choice<'a>> {
    let choice = |(i, output): (usize, &'a engine::llm::Continuation)| Choice {
        index: first + i,
        text: if echo { format!("{}{}", answer.prompt, output.text).into() } else { output.text.as_str().into() },
        logprobs: output.logprobs.as_ref().map(|l| CompletionLogprobs::new(l, &app.tokenizer, &mut 0)),
        finish_reason: Some(reason(output.finish_reason)),
    };
    answer.outputs.iter().enumerate().map(choice).collect()
}

impl PromptField {
    /// Texts and tokens of all prompts.
    async fn encode(self, app: &App) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
        let (texts, lists) = match self {
            PromptField::Text(text) => (vec![text], Vec::new()),
            PromptField::Texts(texts) => (texts, Vec::new()),
            PromptField::Tokens(tokens) => (Vec::new(), vec![tokens]),
            PromptField::TokenLists(lists) => (Vec::new(), lists),
        };
        let (count, most) = (texts.len() + lists.len(), app.limits.max_queue);
        check((1..=most).contains(&count), "prompt", || format!("there must be between 1 and {most} prompts"))?;
        let mut prompts = Vec::with_capacity(count);
        for text in texts {
            prompts.push(app.encode("prompt", text, true).await?);
        }
        for tokens in lists {
            let size = app.vocab_size;
            check(tokens.iter().all(|&id| (id as usize) < size), "prompt", || {
                format!("token ids must be below {size}, the size of the model's vocabulary")
            })?;
            let text = app.tokenizer.decode(&tokens, true).map_err(|e| ApiError::field("prompt", e.to_string()))?;
            prompts.push((text, tokens));
        }
        check(prompts.iter().all(|p| !p.1.is_empty()), "prompt", || "a prompt must have at least one token".into())?;
        Ok(prompts)
    }
}

/// A stream of completions.
struct Chunks {
    app: Arc<App>,
    heading: Heading,
    /// The prompts, if they are to be echoed.
    echo: Vec<String>,
    n: usize,
    include_usage: bool,
    /// For each choice, the characters of the tokens so far.
    offsets: Vec<usize>,
}

impl Chunks {
    fn push(&self, choices: Vec<Choice<'_>>, usage: Option<Usage>, frames: &mut Frames) {
        let Heading { id, created, model } = &self.heading;
        let usage = self.include_usage.then_some(usage);
        frames.push(&Answer { id, object: "text_completion", created: *created, model, choices, usage });
    }
}

impl Format for Chunks {
    fn begin(&mut self, choice: usize, frames: &mut Frames) {
        if let Some(text) = self.echo.get(choice / self.n) {
            let text = text.as_str().into();
            self.push(vec![Choice { index: choice, text, logprobs: None, finish_reason: None }], None, frames);
        }
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let offset = &mut self.offsets[piece.choice];
        let logprobs =
            (!piece.logprobs.is_empty()).then(|| CompletionLogprobs::new(piece.logprobs, &self.app.tokenizer, offset));
        let (index, text, finish_reason) = (piece.choice, piece.text.into(), piece.finish_reason);
        self.push(vec![Choice { index, text, logprobs, finish_reason }], None, frames);
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        self.push(Vec::new(), Some(*usage), frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
