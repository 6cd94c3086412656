//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use engine::answer::{AnswerReader, ToolFormat};
use engine::chat::{Arguments, Message};
use engine::constraint::Thoughts;
use engine::llm::{Continuation, Prompt, StopReason};
use engine::sequence::TokenLogprob;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower_http::request_id::RequestId;

use super::answer::{Heading, Usage, collect, max_tokens};
use super::conversation::Conversation;
use super::decoding::{Decoding, Outputs};
use super::logprobs::ChatLogprobs;
use super::message::{AnswerForm, Delta, Said, Telling};
use super::stream::{Format, Frames, Piece, respond};
use super::tools::{Calling, ToolFields};
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
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    /// Whether what the model thinks is part of the answer.
    include_reasoning: Option<bool>,
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
    message: Said,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<&'a StopReason>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
}

/// Answers a conversation.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    GenerationBody(mut fields, mut decoding): GenerationBody<ChatFields, Decoding>,
) -> Result<Response, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    let logprobs = fields.logprobs()?;
    let asked = match (fields.max_completion_tokens, fields.max_tokens) {
        (Some(most), _) => ("max_completion_tokens", Some(most)),
        (None, most) => ("max_tokens", most),
    };
    let shows_thoughts = fields.include_reasoning.unwrap_or(true);
    let calling = fields.tool_fields().calling(&app)?;
    let tools = calling.as_ref().map(|calling| calling.schemas.clone());
    let conversation = fields.conversation(decoding.add_special_tokens, tools);
    let (text, tokens) = conversation.prompt(&app, Some(app.config.max_positions)).await?;
    let max_tokens = max_tokens(&app, asked, ("messages", tokens.len()), 1, app.config.max_positions)?;
    let stream = decoding.stream.unwrap_or(false);
    let include_usage = decoding.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
    let (reader, thoughts) = reader(&app, &text, calling.as_ref());
    let format = calling.as_ref().map(|calling| calling.format);
    if format.is_some_and(ToolFormat::shows_special_tokens) {
        decoding.skip_special_tokens.get_or_insert(false);
    }
    let grammar = calling.as_ref().and_then(|calling| calling.grammar(&app));
    let outputs = Outputs { max_tokens, logprobs, grammar, thoughts, ..Outputs::default() };
    let params = admission.within(decoding.params(&app, outputs)).await??;
    let is_named = calling.is_some_and(|calling| calling.is_named);
    let form = AnswerForm { reader, format, is_named, shows_thoughts };
    let heading = Heading::new(&app, "chatcmpl", &request);
    let asked = asked.1.map(|_| asked.0);
    let prompts = vec![Prompt::Encoded { text, tokens }];
    let n = params.n;
    let work = Work { prompts, params, field: "messages", asked, stream };
    if stream {
        let told = vec![Telling::new(&form); n];
        let chunks = Chunks { app: app.clone(), heading, include_usage, told };
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
        choices: outputs.map(|(index, output)| choice(&app, &form, index, output)).collect(),
        usage: Some(Some(usage)),
    };
    Ok(Json(answer).into_response())
}

/// What takes answers to this prompt apart, and the thoughts that may come before what a grammar is about.
fn reader(app: &App, prompt: &str, calling: Option<&Calling>) -> (AnswerReader, Thoughts) {
    let (format, names) = calling.map(|calling| (calling.format, calling.names())).unzip();
    let reader = AnswerReader::new(format, names.unwrap_or_default(), app.thinks);
    let begun = app.thinks && prompt.trim_end().ends_with("<think>");
    let over = !app.thinks || prompt.trim_end().ends_with("</think>");
    let thoughts = match ["<think>", "</think>"].map(|tag| app.tokenizer.token_id(tag)) {
        [Some(_), Some(end)] if begun => Thoughts::Until(end),
        [Some(begin), Some(end)] if !over => Thoughts::Possible { begin, end },
        _ => Thoughts::Over,
    };
    (if begun { reader.thinking() } else { reader }, thoughts)
}

fn choice<'a>(app: &App, form: &AnswerForm, index: usize, output: &'a Continuation) -> Choice<'a> {
    let (message, finish_reason) = Said::new(form, &output.text, reason(output.finish_reason));
    Choice {
        index,
        message,
        logprobs: output.logprobs.as_ref().map(|l| ChatLogprobs::new(l, &app.tokenizer)),
        finish_reason,
        stop_reason: output.stop_reason.as_ref(),
    }
}

impl ChatFields {
    fn tool_fields(&mut self) -> ToolFields {
        let (tools, tool_choice) = (self.tools.take(), self.tool_choice.take());
        ToolFields { tools, tool_choice, parallel_tool_calls: self.parallel_tool_calls }
    }

    fn conversation(self, add_special_tokens: Option<bool>, tools: Option<engine::chat::Value>) -> Conversation {
        Conversation {
            tools,
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
    /// What of each choice was told.
    told: Vec<Telling>,
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
        let delta = Delta::begin();
        let (logprobs, finish_reason, stop_reason) = (None, None, None);
        self.push(vec![ChunkChoice { index: choice, delta, logprobs, finish_reason, stop_reason }], None, frames);
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let Piece { choice: index, text, finish_reason, stop_reason, .. } = piece;
        let telling = &mut self.told[index];
        let mut deltas = telling.more(text, finish_reason.is_some());
        let finish_reason = finish_reason.map(|reason| telling.reason(reason));
        let mut logprobs = self.logprobs(piece.logprobs);
        if deltas.is_empty() && (finish_reason.is_some() || logprobs.is_some()) {
            deltas.push(Delta::default());
        }
        let last = deltas.len().saturating_sub(1);
        for (at, delta) in deltas.into_iter().enumerate() {
            let (finish_reason, stop_reason) = if at == last { (finish_reason, stop_reason) } else { (None, None) };
            let logprobs = logprobs.take();
            self.push(vec![ChunkChoice { index, delta, logprobs, finish_reason, stop_reason }], None, frames);
        }
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        self.push(Vec::new(), Some(*usage), frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
