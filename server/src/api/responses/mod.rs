//! `POST /v1/responses`: OpenAI's newer API for chats. The server stores nothing, so each request contains the whole
//! conversation.

mod fields;
mod input;
mod output;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tower_http::request_id::RequestId;

use self::fields::ResponseFields;
use self::output::{OutputEvent, ResponseOutput};
use super::answer::{Heading, Usage, collect};
use super::conversation::Conversation;
use super::decoding::Decoding;
use super::dialogue::Dialogue;
use super::stream::{Format, Frames, Piece, Reports, respond};
use crate::app::{Admission, App};
use crate::body::GenerationBody;
use crate::error::ApiError;
use crate::metrics::reason;

/// Answers an input.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    GenerationBody(mut fields, decoding): GenerationBody<ResponseFields, Decoding>,
) -> Result<Response, ApiError> {
    app.check_model(decoding.model.as_deref())?;
    fields.check(&decoding)?;
    let calling = fields.calling(&app)?;
    let knows_developers = app.template.as_ref().is_some_and(|template| template.mentions("developer"));
    let developer = if knows_developers { "developer" } else { "system" };
    let conversation = Conversation {
        messages: input::messages(fields.instructions.as_deref(), &fields.input, developer)?,
        tools: calling.as_ref().map(|calling| calling.schemas.clone()),
        chat_template_kwargs: fields.chat_template_kwargs.take(),
        add_special_tokens: decoding.add_special_tokens,
        reasoning_effort: fields.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone()),
        verbosity: fields.verbosity(),
        ..Conversation::default()
    };
    let dialogue = Dialogue {
        conversation,
        calling,
        decoding,
        max_tokens: ("max_output_tokens", fields.max_output_tokens),
        at_most: None,
        logprobs: None,
        format: fields.format()?,
        shows_thoughts: fields.include_reasoning.unwrap_or(true),
        field: "input",
    };
    let (work, form) = dialogue.work(&app, &admission).await?;
    let mut heading = Heading::new(&app, "resp", &request, &work.params);
    heading.id = heading.id.replacen('-', "_", 1);
    let mut response = fields.repeated();
    for (name, value) in [
        ("id", json!(heading.id)),
        ("object", json!("response")),
        ("created_at", json!(heading.created)),
        ("model", json!(heading.model)),
        ("temperature", number(work.params.temperature)),
        ("top_p", number(work.params.top_p)),
    ] {
        response[name] = value;
    }
    let mut answer =
        Answer { app: app.clone(), heading, response, output: ResponseOutput::new(form), end: "stop", events: 0 };
    if work.stream {
        let reports = Reports { usage: true, ..Reports::default() };
        return respond(&app, work, admission, reports, answer).await;
    }
    let answers = collect(&app, work, &admission).await?;
    let usage = Usage::of(&answers);
    answer.heading.log(&usage, false);
    for output in answers.iter().flat_map(|answer| &answer.outputs) {
        answer.output.push(&output.text);
        answer.finish(reason(output.finish_reason));
    }
    Ok(Json(answer.ended(&usage)).into_response())
}

/// Rounds a number to six decimal places. Converting f32 to JSON's f64 would otherwise add digits that the client did
/// not send.
fn number(value: f32) -> Value {
    json!((f64::from(value) * 1e6).round() / 1e6)
}

/// A response under construction.
struct Answer {
    app: Arc<App>,
    heading: Heading,
    /// The fields that do not depend on the model's output.
    response: Value,
    output: ResponseOutput,
    /// The finish reason of the output.
    end: &'static str,
    /// Number of events sent.
    events: usize,
}

impl Answer {
    /// Returns the response with a status and the fields that depend on it.
    fn with(&self, status: &str, incomplete: Value, error: Value, usage: Value) -> Value {
        let mut response = self.response.clone();
        for (name, value) in [
            ("status", json!(status)),
            ("incomplete_details", incomplete),
            ("error", error),
            ("output", self.output.items()),
            ("usage", usage),
        ] {
            response[name] = value;
        }
        response
    }

    /// Ends the output for this finish reason and returns the last events.
    fn finish(&mut self, reason: &'static str) -> Vec<OutputEvent> {
        let events = self.output.finish(reason != "stop");
        self.end = if self.output.is_over() { "stop" } else { reason };
        events
    }

    fn begun(&self) -> Value {
        self.with("in_progress", Value::Null, Value::Null, Value::Null)
    }

    /// Returns the complete response.
    fn ended(&mut self, usage: &Usage) -> Value {
        let thoughts = self.app.tokenizer.encode_up_to(&self.output.thoughts(), false, usage.completion_tokens);
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": usage.prompt_tokens_details,
            "output_tokens": usage.completion_tokens,
            // Counts the tokens of the reasoning text by itself, which may be a few tokens off.
            "output_tokens_details": {
                "reasoning_tokens": thoughts.map_or(0, |ids| ids.len().min(usage.completion_tokens)),
            },
            "total_tokens": usage.total_tokens,
        });
        match self.end {
            "length" => self.with("incomplete", json!({"reason": "max_output_tokens"}), Value::Null, usage),
            "abort" => self.with("cancelled", Value::Null, Value::Null, usage),
            _ => self.with("completed", Value::Null, Value::Null, usage),
        }
    }

    fn send(&mut self, OutputEvent(name, mut fields): OutputEvent, frames: &mut Frames) {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.events);
        self.events += 1;
        frames.push_named(name, &fields);
    }
}

impl Format for Answer {
    fn begin(&mut self, _: usize, _: Option<Usage>, frames: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            self.send(OutputEvent(name, json!({"response": self.begun()})), frames);
        }
    }

    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames) {
        let mut events = self.output.push(piece.text);
        if let Some(reason) = piece.finish_reason {
            events.extend(self.finish(reason));
        }
        events.into_iter().for_each(|event| self.send(event, frames));
    }

    fn usage(&mut self, usage: &Usage, frames: &mut Frames) {
        let response = self.ended(usage);
        let name = if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        self.send(OutputEvent(name, json!({"response": response})), frames);
    }

    fn end(&self, _: &mut Frames) {}

    fn broke_off(&mut self, error: ApiError, frames: &mut Frames) {
        let error = json!({"code": "server_error", "message": error.message});
        let response = self.with("failed", Value::Null, error, Value::Null);
        self.send(OutputEvent("response.failed", json!({"response": response})), frames);
    }

    fn heading(&self) -> &Heading {
        &self.heading
    }
}
