//! The steps from an accepted request to its answer that the endpoints share.

use std::future::Future;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use engine::{AdapterHandle, Completion, Event, SamplingParams};
use serde::Serialize;
use tower_http::request_id::RequestId;

use crate::app::{Admission, App};
use crate::error::ApiError;
use crate::worker::{Job, Work};

/// The number of tokens that a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of its prompts.
    pub prompt_tokens: usize,
    /// Tokens of the returned outputs.
    pub completion_tokens: usize,
    /// Tokens of both together.
    pub total_tokens: usize,
    /// Details about the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Details about the tokens of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Tokens found in the prefix cache, which were not computed again.
    pub cached_tokens: usize,
}

/// The outer fields of an answer, and of every chunk of a stream.
#[derive(Clone, Debug)]
pub struct Heading {
    /// The answer's id.
    pub id: String,
    /// When the request arrived, in seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
}

impl Usage {
    /// Returns the sum over finished engine requests.
    pub fn of(answers: &[Completion]) -> Self {
        let mut usage = Usage::default();
        answers.iter().for_each(|answer| usage.add(answer));
        usage
    }

    /// Returns the tokens of one choice and its prompt.
    pub fn of_choice(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        let total_tokens = prompt_tokens + completion_tokens;
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        Usage { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }

    /// Adds a finished engine request.
    pub fn add(&mut self, completion: &Completion) {
        self.prompt_tokens += completion.prompt_tokens.len();
        self.completion_tokens += completion.outputs.iter().map(|o| o.tokens.len()).sum::<usize>();
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        self.prompt_tokens_details.cached_tokens += completion.cached_tokens;
    }
}

impl Heading {
    /// Creates the outer fields of the answer to a request with `params`. Its id is `prefix-` followed by the request's id,
    /// and its model is the adapter that the request named, or the model.
    pub fn new(app: &App, prefix: &str, request: &RequestId, params: &SamplingParams) -> Self {
        let id = request.header_value().to_str().unwrap_or_default();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let model = params.adapter.as_ref().map_or(&*app.model, AdapterHandle::name).to_owned();
        Heading { id: format!("{prefix}-{id}"), created: now.map_or(0, |t| t.as_secs()), model }
    }

    /// Logs that a request was answered.
    pub fn log(&self, usage: &Usage, streamed: bool) {
        let Usage { prompt_tokens, completion_tokens, .. } = *usage;
        tracing::info!(id = %self.id, prompt_tokens, completion_tokens, streamed, "answered");
    }
}

/// Admits a request before its body is read, so that the number of admitted requests bounds the memory for bodies.
impl FromRequestParts<Arc<App>> for Admission {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        app.admit()
    }
}

impl Admission {
    /// Returns the result of `work`, or an error if the request's deadline passes first.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        tokio::time::timeout_at(self.deadline, work).await.map_err(|_| ApiError::timeout())
    }
}

/// Runs `work` to its end. Returns one answer per prompt.
pub async fn collect(app: &App, work: Work, admission: &Admission) -> Result<Vec<Completion>, ApiError> {
    let mut answers: Vec<Option<Completion>> = work.prompts.iter().map(|_| None).collect();
    let mut job: Job = app.worker.submit(work);
    while answers.iter().any(Option::is_none) {
        for (prompt, event) in admission.within(job.next()).await?? {
            if let Event::Done(completion) = event {
                answers[prompt] = Some(completion);
            }
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Returns the maximum tokens of an output: the requested number, or else `default` within the context. The requested
/// number and the prompt's length come with the names of their fields, for error messages.
///
/// # Errors
/// 400 if prompt and output exceed the model's positions, or the requested number is below `least`.
pub fn max_tokens(
    app: &App,
    (param, asked): (&str, Option<usize>),
    (prompt_param, prompt): (&str, usize),
    least: usize,
    default: usize,
) -> Result<usize, ApiError> {
    let most = app.config.max_positions;
    // One position must be left unless no token is to be generated.
    if prompt + asked.unwrap_or(1).min(1) > most {
        return Err(ApiError::no_room(prompt_param, prompt, None, &format!("{most} tokens")));
    }
    match asked {
        None => Ok(default.min(most - prompt)),
        Some(asked) if asked < least => Err(ApiError::field(param, format!("{param} must be at least {least}"))),
        Some(asked) if asked > most - prompt => {
            Err(ApiError::no_room(param, prompt, Some(asked), &format!("{most} tokens")))
        }
        Some(asked) => Ok(asked),
    }
}
