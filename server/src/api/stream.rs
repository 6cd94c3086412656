//! Streams answers as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use engine::tools::sequence::{PromptLogprobs, TokenLogprob};
use engine::{Completion, Event, Prompt, StopReason};
use futures_util::stream;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::answer::{Heading, Usage};
use crate::app::{Admission, App};
use crate::error::ApiError;
use crate::metrics::reason;
use crate::worker::{Job, Work};

/// Time without an event after which a stream that is kept alive gets one.
pub const IDLE: Duration = Duration::from_secs(10);

/// The data that an answer reports in addition to its text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reports {
    /// Whether a stream ends with a count of its tokens.
    pub usage: bool,
    /// Whether each chunk counts its choice's tokens so far.
    pub usage_in_chunks: bool,
    /// Whether to report token ids.
    pub token_ids: bool,
    /// Whether logprobs name tokens by their ids.
    pub tokens_as_ids: bool,
}

/// The differences between streams of completions, chats and responses.
pub trait Format: Send + 'static {
    /// Whether idle streams get events that keep their connection alive. Such a stream begins after [`IDLE`] at the latest,
    /// and then reports errors as events.
    const IS_KEPT_ALIVE: bool = false;

    /// Receives a prompt, with its logprobs if requested, before its first choice begins.
    fn prompt(&mut self, _prompt: usize, _text: &str, _tokens: &[u32], _logprobs: Option<&PromptLogprobs>) {}
    /// Writes the chunks that begin `choice`, with its token count if chunks have one.
    fn begin(&mut self, choice: usize, usage: Option<Usage>, frames: &mut Frames);
    /// Writes the event that keeps an idle connection alive.
    fn keep_alive(&mut self, _frames: &mut Frames) {}
    /// Writes a chunk with the next piece of a choice.
    fn more(&mut self, piece: Piece<'_>, frames: &mut Frames);
    /// Writes the chunk that counts tokens.
    fn usage(&mut self, usage: &Usage, frames: &mut Frames);
    /// Writes the end of the stream.
    fn end(&self, frames: &mut Frames) {
        frames.0.extend_from_slice(b"data: [DONE]\n\n");
    }
    /// Writes an error that ends the stream early.
    fn broke_off(&mut self, error: ApiError, frames: &mut Frames) {
        frames.push(&error.body());
    }
    /// Returns the outer fields of the answer.
    fn heading(&self) -> &Heading;
}

/// The next piece of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The index of the choice.
    pub choice: usize,
    /// Its new text.
    pub text: &'a str,
    /// The new tokens' ids.
    pub tokens: &'a [u32],
    /// The new tokens' logprobs.
    pub logprobs: &'a [TokenLogprob],
    /// The choice's token count so far, if chunks have one.
    pub usage: Option<Usage>,
    /// The reason why the choice ended, if it did.
    pub finish_reason: Option<&'static str>,
    /// The stop string or stop token that ended it, if any.
    pub stop_reason: Option<&'a StopReason>,
}

/// Events that are sent together.
#[derive(Debug, Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    /// Adds a named event.
    pub fn push_named(&mut self, name: &str, data: &impl Serialize) {
        self.0.extend_from_slice(format!("event: {name}\n").as_bytes());
        self.push(data);
    }

    /// Adds an event.
    pub fn push(&mut self, data: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // Writing to memory cannot fail, and all keys are strings.
        let _ = serde_json::to_writer(&mut self.0, data);
        self.0.extend_from_slice(b"\n\n");
    }
}

/// A stream in progress. It is dropped when the client disconnects, which cancels the job.
pub(super) struct Streaming<F> {
    admission: Admission,
    job: Job,
    format: F,
    /// Outputs per prompt.
    n: usize,
    /// Number of prompts without a complete answer.
    left: usize,
    /// How much of each choice was sent.
    sent: Vec<Sent>,
    usage: Usage,
    reports: Reports,
    /// The number of tokens of each prompt.
    prompt_tokens: Vec<usize>,
    /// The number of those that were a prefix hit. `None` before the prompt's first token.
    cached_tokens: Vec<Option<usize>>,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    begun: bool,
    bytes: usize,
    logprobs: usize,
    /// Generated tokens, with or without text.
    tokens: usize,
}

type Events = Vec<(usize, Event)>;

/// Runs `work` and streams its outputs.
///
/// # Errors
/// Errors before the first token. Later errors are sent as events, after which the stream ends without `[DONE]`.
pub async fn respond<F: Format>(
    app: &App,
    work: Work,
    admission: Admission,
    reports: Reports,
    format: F,
) -> Result<Response, ApiError> {
    let n = work.params.n;
    let prompt_tokens: Vec<usize> = work.prompts.iter().map(|prompt| tokens(prompt).len()).collect();
    let job = app.worker.submit(work);
    response(Streaming::new(admission, job, format, n, prompt_tokens, reports)).await
}

/// Returns the tokens of a prompt. The server always encodes prompts before this.
pub fn tokens(prompt: &Prompt) -> &[u32] {
    match prompt {
        Prompt::Encoded { tokens, .. } | Prompt::Tokens(tokens) => tokens,
        Prompt::Text(_) => &[],
    }
}

impl From<Frames> for Result<Bytes, Infallible> {
    fn from(frames: Frames) -> Self {
        Ok(frames.0.into())
    }
}

/// Returns the response that streams the outputs. See [`respond`].
pub(super) async fn response<F: Format>(mut streaming: Streaming<F>) -> Result<Response, ApiError> {
    let first = streaming.next(Instant::now() + IDLE).await?;
    let body = stream::unfold(Some((streaming, Some(first))), |state| async {
        let (mut streaming, mut ready) = state?;
        let mut frames = Frames::default();
        let idle = Instant::now() + IDLE;
        // A step's tokens may not complete any text yet.
        while frames.0.is_empty() {
            let events = match ready.take() {
                Some(events) => Ok(events),
                None => streaming.next(idle).await,
            };
            match events {
                Ok(Some(events)) => streaming.take(events, &mut frames),
                Ok(None) => streaming.keep_alive(&mut frames),
                Err(error) => {
                    streaming.admission.broke_off(&error);
                    streaming.format.broke_off(error, &mut frames);
                    return Some((frames.into(), None));
                }
            }
        }
        Some((frames.into(), (streaming.left > 0).then_some((streaming, None))))
    });
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let no_cache = (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(([kind, no_cache], Body::from_stream(body)).into_response())
}

impl<F: Format> Streaming<F> {
    pub(super) fn new(
        admission: Admission,
        job: Job,
        format: F,
        n: usize,
        prompt_tokens: Vec<usize>,
        reports: Reports,
    ) -> Self {
        let left = prompt_tokens.len();
        let (sent, usage, cached_tokens) = (vec![Sent::default(); left * n], Usage::default(), vec![None; left]);
        Streaming { admission, job, format, n, left, sent, usage, reports, prompt_tokens, cached_tokens }
    }

    /// Waits for the next events. If the stream is kept alive, waits until `idle` at most and then returns `None`.
    async fn next(&mut self, idle: Instant) -> Result<Option<Events>, ApiError> {
        let next = self.admission.within(self.job.next());
        if !F::IS_KEPT_ALIVE {
            return Ok(Some(next.await??));
        }
        match timeout_at(idle, next).await {
            Ok(events) => Ok(Some(events??)),
            Err(_) => Ok(None),
        }
    }

    /// Writes an event to an idle stream.
    fn keep_alive(&mut self, frames: &mut Frames) {
        // The beginning of a stream is an event too.
        if !self.begin(0, frames) {
            self.format.keep_alive(frames);
        }
    }

    /// Converts a step's events into chunks. After the last answer, also writes the end of the stream.
    fn take(&mut self, events: Events, frames: &mut Frames) {
        for (prompt, event) in events {
            match event {
                Event::Prompt { text, tokens, logprobs, .. } => {
                    self.format.prompt(prompt, &text, &tokens, logprobs.as_ref());
                }
                Event::Token { index, text, token, logprob, cached_tokens, .. } => {
                    self.cached_tokens[prompt].get_or_insert(cached_tokens);
                    let (choice, logprobs) = (prompt * self.n + index, logprob.as_slice());
                    self.sent[choice].tokens += 1;
                    if !text.is_empty() || !logprobs.is_empty() || self.reports.token_ids {
                        let (tokens, text) = (&[token][..], text.as_str());
                        let (finish_reason, stop_reason, usage) = (None, None, None);
                        self.send(Piece { choice, text, tokens, logprobs, usage, finish_reason, stop_reason }, frames);
                    }
                }
                Event::Done(completion) => self.finish(prompt, &completion, frames),
            }
        }
        if self.left == 0 {
            if self.reports.usage {
                self.format.usage(&self.usage, frames);
            }
            self.format.end(frames);
            self.format.heading().log(&self.usage, true);
        }
    }

    /// Sends the rest of a prompt's choices.
    fn finish(&mut self, prompt: usize, completion: &Completion, frames: &mut Frames) {
        let first = prompt * self.n;
        self.cached_tokens[prompt].get_or_insert(completion.cached_tokens);
        if self.sent[first..first + self.n].iter().all(|sent| !sent.begun) {
            let Completion { prompt: text, prompt_tokens, prompt_logprobs, .. } = completion;
            self.format.prompt(prompt, text, prompt_tokens, prompt_logprobs.as_ref());
        }
        for (i, output) in completion.outputs.iter().enumerate() {
            let choice = first + i;
            let sent = self.sent[choice];
            let text = output.text.get(sent.bytes..).unwrap_or_default();
            let logprobs = output.logprobs.as_deref().unwrap_or_default();
            let logprobs = logprobs.get(sent.logprobs..).unwrap_or_default();
            let tokens = output.tokens.get(sent.tokens..).unwrap_or_default();
            self.sent[choice].tokens = output.tokens.len();
            let (finish_reason, stop_reason) = (Some(reason(output.finish_reason)), output.stop_reason.as_ref());
            self.send(Piece { choice, text, tokens, logprobs, usage: None, finish_reason, stop_reason }, frames);
        }
        self.usage.add(completion);
        self.left -= 1;
    }

    /// Writes the beginning of a choice and returns true, unless it was written before.
    fn begin(&mut self, choice: usize, frames: &mut Frames) -> bool {
        let begins = !std::mem::replace(&mut self.sent[choice].begun, true);
        if begins {
            self.format.begin(choice, self.counted(choice, 0), frames);
        }
        begins
    }

    fn send(&mut self, mut piece: Piece<'_>, frames: &mut Frames) {
        self.begin(piece.choice, frames);
        let sent = &mut self.sent[piece.choice];
        sent.bytes += piece.text.len();
        sent.logprobs += piece.logprobs.len();
        let tokens = sent.tokens;
        piece.usage = self.counted(piece.choice, tokens);
        self.format.more(piece, frames);
    }

    /// Returns the token count of a choice, if chunks have one.
    fn counted(&self, choice: usize, tokens: usize) -> Option<Usage> {
        let prompt = choice / self.n;
        let (prompt_tokens, cached) = (self.prompt_tokens[prompt], self.cached_tokens[prompt].unwrap_or(0));
        self.reports.usage_in_chunks.then(|| Usage::of_choice(prompt_tokens, cached, tokens))
    }
}
