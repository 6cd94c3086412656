//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use engine::tools::chat::{Arguments, Message};
use engine::tools::sequence::{PromptLogprobs, TokenLogprob};
use engine::{Continuation, StopReason};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower_http::request_id::RequestId;

use super::answer::{Heading, Usage, collect};
use super::answer_form::AnswerForm;
use super::conversation::Conversation;
use super::decoding::Decoding;
use super::dialogue::Dialogue;
use super::logprobs::{ChatLogprobs, Names, ScoredPrompt, scored_prompt};
use super::message::{AssistantMessage, Delta, MessageBuilder};
use super::stream::{Format, Frames, Piece, Reports, respond, tokens};
use super::tools::ToolFields;
use crate::app::{Admission, App};
use crate::body::GenerationBody;
use crate::error::{ApiError, check};
use crate::metrics::reason;

/// Maximum number of most likely tokens per position. The number is OpenAI's.
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
    /// Whether to report the logprob of each token.
    logprobs: Option<bool>,
    /// The number of most likely tokens to report for each position.
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    /// Whether the model's reasoning is part of the answer.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<ScoredPrompt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
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
    let (stream, mut reports) = (decoding.stream.unwrap_or(false), decoding.reports());
    // Token ids would reveal hidden reasoning.
    reports.token_ids &= shows_thoughts;
    let conversation = fields.conversation(decoding.add_special_tokens, tools);
    let (format, field) = (decoding.take_format()?, "messages");
    let dialogue = Dialogue {
        conversation,
        calling,
        decoding,
        max_tokens: asked,
        at_most: None,
        logprobs,
        format,
        shows_thoughts,
        field,
    };
    let (work, form) = dialogue.work(&app, &admission).await?;
    let heading = Heading::new(&app, "chatcmpl", &request, &work.params);
    let n = work.params.n;
    let prompt_ids = work.prompts.first().filter(|_| reports.token_ids).map(|prompt| tokens(prompt).to_vec());
    if stream {
        let told = vec![MessageBuilder::new(&form); n];
        let chunks = Chunks { app: app.clone(), heading, reports, told, prompt_ids };
        return respond(&app, work, admission, reports, chunks).await;
    }
    let answers = collect(&app, work, &admission).await?;
    let usage = Usage::of(&answers);
    heading.log(&usage, false);
    let scored = |entries: &PromptLogprobs| scored_prompt(entries, &app.tokenizer);
    let outputs = answers.iter().flat_map(|answer| &answer.outputs).enumerate();
    let answer = Answer {
        id: &heading.id,
        object: "chat.completion",
        created: heading.created,
        model: &heading.model,
        choices: outputs.map(|(index, output)| choice(&app, &form, reports, index, output)).collect(),
        usage: Some(Some(usage)),
        prompt_logprobs: answers.iter().find_map(|answer| answer.prompt_logprobs.as_ref()).map(scored),
        prompt_token_ids: prompt_ids,
    };
    Ok(Json(answer).into_response())
}

fn choice<'a>(app: &App, form: &AnswerForm, reports: Reports, index: usize, output: &'a Continuation) -> Choice<'a> {
    let names = Names { tokenizer: &app.tokenizer, as_ids: reports.tokens_as_ids };
    let (message, finish_reason) = AssistantMessage::new(form, &output.text, reason(output.finish_reason));
    Choice {
        index,
        message,
        logprobs: output.logprobs.as_ref().map(|l| ChatLogprobs::new(l, names)),
        finish_reason,
        stop_reason: output.stop_reason.as_ref(),
        token_ids: reports.token_ids.then_some(output.tokens.as_slice()),
    }
}

impl ChatFields {
    fn tool_fields(&mut self) -> ToolFields {
        let (tools, tool_choice) = (self.tools.take(), self.tool_choice.take());
        ToolFields { tools, tool_choice, parallel_tool_calls: self.parallel_tool_calls }
    }

    fn conversation(self, add_special_tokens: Option<bool>, tools: Option<engine::tools::chat::Value>) -> Conversation {
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

    /// Returns the number of most likely tokens to report. `None` if logprobs are not requested.
    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let wanted = self.logprobs.unwrap_or(false);
        let top = self.top_logprobs.unwrap_or(0);
        check(wanted || top == 0, "top_logprobs", || "top_logprobs needs logprobs".into())?;
        check(top <= MAX_TOP_LOGPROBS, "top_logprobs", || format!("top_logprobs must be at most {MAX_TOP_LOGPROBS}"))?;
        Ok(wanted.then_some(top))
    }
}

/// The format of a streamed chat answer.
struct Chunks {
    app: Arc<App>,
    heading: Heading,
    reports: Reports,
    /// The message built so far for each choice.
    told: Vec<MessageBuilder>,
    /// The prompt's tokens, until the first chunk includes them.
    prompt_ids: Option<Vec<u32>>,
}

impl Chunks {
    fn push(&mut self, choices: Vec<ChunkChoice<'_>>, usage: Option<Usage>, frames: &mut Frames) {
        let prompt_token_ids = self.prompt_ids.take();
        let Heading { id, created, model } = &self.heading;
        let usage = self.reports.usage.then_some(usage);
        let (object, prompt_logprobs) = ("chat.completion.chunk", None);
        let created = *created;
        frames.push(&Answer { id, object, created, model, choices, usage, prompt_logprobs, prompt_token_ids });
    }

    fn logprobs(&self, tokens: &[TokenLogprob]) -> Option<ChatLogprobs> {
        let names = Names { tokenizer: &self.app.tokenizer, as_ids: self.reports.tokens_as_ids };
        (!tokens.is_empty()).then(|| ChatLogprobs::new(tokens, names))
    }
}

impl Format for Chunks {
    fn begin(&mut self, choice: usize, usage: Option<Usage>, frames: &mut Frames) {
        let delta = Delta::begin();
        let (logprobs, finish_reason, stop_reason, token_ids) = (None, None, None, None);
        let choice = ChunkChoice { index: choice, delta, logprobs, finish_reason, stop_reason, token_ids };
        self.push(vec![choice], usage, frames);
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let Piece { choice: index, text, tokens, usage, finish_reason, stop_reason, .. } = piece;
        let telling = &mut self.told[index];
        let mut deltas = telling.more(text, finish_reason.is_some());
        let finish_reason = finish_reason.map(|reason| telling.reason(reason));
        let mut logprobs = self.logprobs(piece.logprobs);
        let mut token_ids = self.reports.token_ids.then_some(tokens);
        let has_tokens = logprobs.is_some() || token_ids.is_some_and(|ids| !ids.is_empty());
        if deltas.is_empty() && (finish_reason.is_some() || has_tokens) {
            deltas.push(Delta::default());
        }
        let last = deltas.len().saturating_sub(1);
        for (at, delta) in deltas.into_iter().enumerate() {
            let (finish_reason, stop_reason) = if at == last { (finish_reason, stop_reason) } else { (None, None) };
            let (logprobs, token_ids) = (logprobs.take(), token_ids.take());
            let choice = ChunkChoice { index, delta, logprobs, finish_reason, stop_reason, token_ids };
            self.push(vec![choice], usage, frames);
        }
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        self.push(Vec::new(), Some(*usage), frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
