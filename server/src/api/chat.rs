//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use engine::chat::{Arguments, Message};
use engine::llm::{Continuation, Prompt, StopReason};
use engine::sequence::TokenLogprob;
use serde::{Deserialize, Serialize};
use tower_http::request_id::RequestId;

use super::answer::{Heading, Usage, collect, max_tokens};
use super::conversation::Conversation;
use super::decoding::Decoding;
use super::logprobs::ChatLogprobs;
use super::stream::{Format, Frames, Piece, respond};
use crate::app::{Admission, App};
use crate::body::GenerationBody;
use crate::error::{ApiError, check};
use crate::metrics::reason;
use crate::worker::Work;

/// Likeliest tokens that can be asked for; OpenAI's number.
const MAX_TOP_LOGPROBS: usize = 20;

/// The fields that only chats have.
#[derive(Debug, Deserialize)]
pub struct ChatFields {
    messages: Vec<Message>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Arguments>,
    documents: Option<Vec<Arguments>>,
    chat_template: Option<String>,
    reasoning_effort: Option<String>,
    verbosity: Option<String>,
    /// The older name of `max_completion_tokens`.
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    /// Report the logprob of each token.
    logprobs: Option<bool>,
    /// Report the logprobs of this many of the likeliest tokens in its place, too.
    top_logprobs: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Answer<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: usize,
    message: Said<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<&'a StopReason>,
}

#[derive(Debug, Serialize)]
struct Said<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
}

#[derive(Debug, Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

/// Answers a conversation.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    GenerationBody(fields, decoding): GenerationBody<ChatFields, Decoding>,
) -> Result<Response, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    let logprobs = fields.logprobs()?;
    let asked = match (fields.max_completion_tokens, fields.max_tokens) {
        (Some(most), _) => ("max_completion_tokens", Some(most)),
        (None, most) => ("max_tokens", most),
    };
    let conversation = fields.conversation(decoding.add_special_tokens);
    let (text, tokens) = conversation.prompt(&app, Some(app.config.max_positions)).await?;
    let max_tokens = max_tokens(&app, asked, ("messages", tokens.len()), 1, app.config.max_positions)?;
    let stream = decoding.stream.unwrap_or(false);
    let include_usage = decoding.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
    let params = decoding.params(&app, max_tokens, logprobs, false)?;
    let heading = Heading::new(&app, "chatcmpl", &request);
    let asked = asked.1.map(|_| asked.0);
    let prompts = vec![Prompt::Encoded { text, tokens }];
    let work = Work { prompts, params, field: "messages", asked, stream };
    if stream {
        let chunks = Chunks { app: app.clone(), heading, include_usage };
        return respond(&app, work, admission, include_usage, chunks).await;
    }
    let answers = collect(&app, work, &admission).await?;
    let mut usage = Usage::default();
    answers.iter().for_each(|answer| usage.add(answer));
    heading.log(&usage, false);
    let outputs = answers.iter().flat_map(|answer| &answer.outputs).enumerate();
    let answer = Answer {
        id: &heading.id,
        object: "chat.completion",
        created: heading.created,
        model: &heading.model,
        choices: outputs.map(|(index, output)| choice(&app, index, output)).collect(),
        usage: Some(Some(usage)),
    };
    Ok(Json(answer).into_response())
}

fn choice<'a>(app: &App, index: usize, output: &'a Continuation) -> Choice<'a> {
    Choice {
        index,
        message: Said { role: "assistant", content: &output.text, refusal: None },
        logprobs: output.logprobs.as_ref().map(|l| ChatLogprobs::new(l, &app.tokenizer)),
        finish_reason: reason(output.finish_reason),
        stop_reason: output.stop_reason.as_ref(),
    }
}

impl ChatFields {
    fn conversation(self, add_special_tokens: Option<bool>) -> Conversation {
        Conversation {
            add_special_tokens,
            messages: self.messages,
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            chat_template_kwargs: self.chat_template_kwargs,
            documents: self.documents,
            chat_template: self.chat_template,
            reasoning_effort: self.reasoning_effort,
            verbosity: self.verbosity,
        }
    }

    /// How many of the likeliest tokens are wanted, if logprobs are.
    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let wanted = self.logprobs.unwrap_or(false);
        let top = self.top_logprobs.unwrap_or(0);
        check(wanted || top == 0, "top_logprobs", || "top_logprobs needs logprobs".into())?;
        check(top <= MAX_TOP_LOGPROBS, "top_logprobs", || format!("top_logprobs must be at most {MAX_TOP_LOGPROBS}"))?;
        Ok(wanted.then_some(top))
    }
}

/// A stream of a chat's answer.
struct Chunks {
    app: Arc<App>,
    heading: Heading,
    include_usage: bool,
}

impl Chunks {
    fn push(&self, choices: Vec<ChunkChoice<'_>>, usage: Option<Usage>, frames: &mut Frames) {
        let Heading { id, created, model } = &self.heading;
        let usage = self.include_usage.then_some(usage);
        frames.push(&Answer { id, object: "chat.completion.chunk", created: *created, model, choices, usage });
    }

    fn logprobs(&self, tokens: &[TokenLogprob]) -> Option<ChatLogprobs> {
        (!tokens.is_empty()).then(|| ChatLogprobs::new(tokens, &self.app.tokenizer))
    }
}

impl Format for Chunks {
    fn begin(&mut self, choice: usize, frames: &mut Frames) {
        let delta = Delta { role: Some("assistant"), content: Some("") };
        let (logprobs, finish_reason, stop_reason) = (None, None, None);
        self.push(vec![ChunkChoice { index: choice, delta, logprobs, finish_reason, stop_reason }], None, frames);
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let content = (!piece.text.is_empty()).then_some(piece.text);
        let delta = Delta { content, ..Delta::default() };
        let Piece { choice: index, finish_reason, stop_reason, .. } = piece;
        let logprobs = self.logprobs(piece.logprobs);
        self.push(vec![ChunkChoice { index, delta, logprobs, finish_reason, stop_reason }], None, frames);
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        self.push(Vec::new(), Some(*usage), frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
