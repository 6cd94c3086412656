//! What completions and chats have in common on the way from an accepted request to its answer.

use std::future::Future;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use engine::llm::{Completion, RequestEvent};
use serde::Serialize;
use tower_http::request_id::RequestId;

use crate::app::{Admission, App};
use crate::error::ApiError;
use crate::worker::{Job, Work};

/// How many tokens a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// In its prompts.
    pub prompt_tokens: usize,
    /// In the outputs that were returned.
    pub completion_tokens: usize,
    /// Together.
    pub total_tokens: usize,
    /// More about those of the prompts.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// What became of prompts' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Those that were prefix hits, and so not computed.
    pub cached_tokens: usize,
}

/// The outer fields of an answer, and of every chunk of a stream.
#[derive(Clone, Debug)]
pub struct Heading {
    /// The answer's name.
    pub id: String,
    /// When it was asked for, in seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
}

impl Usage {
    /// The sum of answered requests of the engine.
    pub fn of(answers: &[Completion]) -> Self {
        let mut usage = Usage::default();
        answers.iter().for_each(|answer| usage.add(answer));
        usage
    }

    /// The tokens of one choice and its prompt.
    pub fn of_choice(prompt_tokens: usize, completion_tokens: usize) -> Self {
        let total_tokens = prompt_tokens + completion_tokens;
        Usage { prompt_tokens, completion_tokens, total_tokens, ..Usage::default() }
    }

    /// Adds an answered request of the engine.
    pub fn add(&mut self, completion: &Completion) {
        self.prompt_tokens += completion.prompt_tokens.len();
        self.completion_tokens += completion.outputs.iter().map(|o| o.tokens.len()).sum::<usize>();
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        self.prompt_tokens_details.cached_tokens += completion.cached_tokens;
    }
}

impl Heading {
    /// The outer fields of an answer with the name `prefix-` and the request's own id.
    pub fn new(app: &App, prefix: &str, request: &RequestId) -> Self {
        let id = request.header_value().to_str().unwrap_or_default();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Heading { id: format!("{prefix}-{id}"), created: now.map_or(0, |t| t.as_secs()), model: app.model.clone() }
    }

    /// Logs the end of a request.
    pub fn log(&self, usage: &Usage, streamed: bool) {
        let Usage { prompt_tokens, completion_tokens, .. } = *usage;
        tracing::info!(id = %self.id, prompt_tokens, completion_tokens, streamed, "answered");
    }
}

/// Admitted before the body is read, so that bodies take no more memory than requests in progress may.
impl FromRequestParts<Arc<App>> for Admission {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        app.admit()
    }
}

impl Admission {
    /// The result of `work`, unless the request's time is over first.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        tokio::time::timeout_at(self.deadline, work).await.map_err(|_| ApiError::timeout())
    }
}

/// Runs `work` to its end. Returns an answer for each prompt.
pub async fn collect(app: &App, work: Work, admission: &Admission) -> Result<Vec<Completion>, ApiError> {
    let mut answers: Vec<Option<Completion>> = work.prompts.iter().map(|_| None).collect();
    let mut job: Job = app.worker.submit(work);
    while answers.iter().any(Option::is_none) {
        for (prompt, event) in admission.within(job.next()).await?? {
            if let RequestEvent::Done(completion) = event {
                answers[prompt] = Some(completion);
            }
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// How many tokens an output may have: as many as were asked for, else `default`. Each number comes with the name of
/// the field that it is from: how long the output may be, how long the prompt is.
///
/// # Errors
/// 400 if that is more than the model has positions for, or less than `least`.
pub fn max_tokens(
    app: &App,
    (param, asked): (&str, Option<usize>),
    (prompt_param, prompt): (&str, usize),
    least: usize,
    default: usize,
) -> Result<usize, ApiError> {
    let most = app.config.max_positions;
    // One position must be left, unless nothing is to be generated.
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
