//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API for chats. Both translate to the chat path,
//! and the server stores nothing.

mod block;
mod blocks;
mod errors;
mod events;
mod fields;
mod input;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use engine::StopReason;
use serde::Serialize;
use serde_json::{Value, json};
use tower_http::request_id::RequestId;

use self::block::Block;
use self::blocks::MessageContent;
pub use self::errors::shape_errors;
use self::events::{Ending, MessageEvent, MessageHead, MessageUsage, StartedMessage};
use self::fields::MessageFields;
use super::answer::{Heading, Usage, collect};
use super::decoding::Decoding;
use super::dialogue::Dialogue;
use super::stream::{Format, Frames, Piece, Reports, respond};
use crate::app::{Admission, App};
use crate::body::BetaBody;
use crate::error::ApiError;
use crate::metrics::reason;

/// Answers a conversation.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    BetaBody(mut fields, mut decoding): BetaBody<MessageFields, Decoding>,
) -> Result<Response, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    fields.check(&decoding)?;
    let most = fields.max_tokens()?;
    decoding.stop = fields.take_stop()?.or(decoding.stop);
    let calling = fields.calling(&app)?;
    let mut conversation = fields.conversation(&app, calling.as_ref())?;
    conversation.add_special_tokens = decoding.add_special_tokens;
    let dialogue = Dialogue {
        conversation,
        calling,
        decoding,
        max_tokens: ("max_tokens", None),
        at_most: Some(most),
        logprobs: None,
        format: fields.take_format()?,
        shows_thoughts: fields.shows_thoughts(),
        field: "messages",
    };
    let (work, form) = dialogue.work(&app, &admission).await?;
    let mut heading = Heading::new(&app, "msg", &request, &work.params);
    heading.id = heading.id.replacen('-', "_", 1);
    let content = MessageContent::new(form, fields.omits_thoughts());
    let mut answer = Answer { app: app.clone(), heading, content, most, end: "stop", stop: None };
    if work.stream {
        let reports = Reports { usage: true, usage_in_chunks: true, ..Reports::default() };
        return respond(&app, work, admission, reports, answer).await;
    }
    let answers = collect(&app, work, &admission).await?;
    let usage = Usage::of(&answers);
    answer.heading.log(&usage, false);
    for output in answers.iter().flat_map(|answer| &answer.outputs) {
        answer.content.push(&output.text);
        answer.finish(reason(output.finish_reason), output.stop_reason.as_ref());
    }
    let (head, ending) = (answer.head(), answer.ending(&usage));
    Ok(Json(Message { head, content: answer.content.blocks(), ending, usage: (&usage).into() }).into_response())
}

/// Counts the tokens of a conversation's prompt, which may be longer than the context.
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    _admission: Admission,
    BetaBody(mut fields, decoding): BetaBody<MessageFields, Decoding>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    fields.check(&decoding)?;
    fields.take_format()?;
    let calling = fields.calling(&app)?;
    let mut conversation = fields.conversation(&app, calling.as_ref())?;
    conversation.add_special_tokens = decoding.add_special_tokens;
    let (_, tokens) = conversation.prompt(&app, "messages", None).await?;
    Ok(Json(json!({"input_tokens": tokens.len()})))
}

/// A whole message.
#[derive(Debug, Serialize)]
struct Message<'a> {
    #[serde(flatten)]
    head: MessageHead,
    content: &'a [Block],
    #[serde(flatten)]
    ending: Ending,
    usage: MessageUsage,
}

/// A message under construction.
struct Answer {
    app: Arc<App>,
    heading: Heading,
    content: MessageContent,
    /// The most tokens that the request allows.
    most: usize,
    /// The finish reason of the output.
    end: &'static str,
    /// The stop sequence that ended the output.
    stop: Option<String>,
}

impl Answer {
    fn head(&self) -> MessageHead {
        let Heading { id, model, .. } = self.heading.clone();
        MessageHead { id, r#type: "message", role: "assistant", model }
    }

    /// Ends the content for this finish reason and returns the last events.
    fn finish(&mut self, reason: &'static str, stop: Option<&StopReason>) -> Vec<MessageEvent> {
        let events = self.content.finish();
        (self.end, self.stop) = match stop {
            _ if self.content.is_over() => ("stop", None),
            Some(StopReason::Text(text)) => (reason, Some(text.clone())),
            _ => (reason, None),
        };
        events
    }

    /// Returns why the message ended. A cancelled message ends with `max_tokens`.
    fn ending(&self, usage: &Usage) -> Ending {
        let is_full = usage.completion_tokens < self.most && usage.total_tokens >= self.app.context_len();
        let reason = match self.end {
            "length" if is_full => "model_context_window_exceeded",
            "stop" if self.stop.is_some() => "stop_sequence",
            "stop" if self.content.has_calls() => "tool_use",
            "stop" => "end_turn",
            _ => "max_tokens",
        };
        Ending { stop_reason: Some(reason), stop_sequence: self.stop.clone() }
    }
}

fn send(event: &MessageEvent, frames: &mut Frames) {
    frames.push_named(event.name(), event);
}

impl Format for Answer {
    const IS_KEPT_ALIVE: bool = true;

    fn begin(&mut self, _: usize, usage: Option<Usage>, frames: &mut Frames) {
        let usage = MessageUsage::from(&usage.unwrap_or_default());
        let message = StartedMessage { head: self.head(), content: [], ending: Ending::default(), usage };
        send(&MessageEvent::MessageStart { message }, frames);
        send(&MessageEvent::Ping, frames);
    }

    fn keep_alive(&mut self, frames: &mut Frames) {
        send(&MessageEvent::Ping, frames);
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let mut events = self.content.push(piece.text);
        if let Some(reason) = piece.finish_reason {
            events.extend(self.finish(reason, piece.stop_reason));
        }
        events.iter().for_each(|event| send(event, frames));
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        let delta = self.ending(usage);
        send(&MessageEvent::MessageDelta { delta, usage: usage.into() }, frames);
    }

    fn end(&self, frames: &mut Frames) {
        send(&MessageEvent::MessageStop, frames);
    }

    fn broke_off(&mut self, error: ApiError, frames: &mut Frames) {
        send(&MessageEvent::Error { error: (&error).into() }, frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
