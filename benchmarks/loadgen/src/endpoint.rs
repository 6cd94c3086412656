//! A server with OpenAI's API, and requests to it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::client::{Answered, Client, chunk};
use crate::random::WorkloadRng;
use crate::received::Received;
use crate::record::{Answer, Record};
use crate::sse::Events;
use crate::workload::Lengths;

/// Token ids for prompts. Every vocabulary has them, and they have no special meaning in the vocabularies we know.
const IDS: std::ops::Range<usize> = 100..1000;
/// Words that are one token each in most vocabularies.
const WORDS: [&str; 16] = [
    "the", "one", "day", "man", "time", "house", "water", "new", "old", "big", "good", "said", "come", "made", "went",
    "more",
];
/// Most bytes of an error that are read, and most characters of it that are kept.
const ERROR_BYTES: usize = 4096;
const ERROR_CHARS: usize = 200;

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RequestPrompt {
    /// Token ids. Their number is exact.
    Ids(Vec<usize>),
    /// Text, for servers that accept nothing else. Its number of tokens is approximate.
    Text(String),
}

impl RequestPrompt {
    /// Returns `tokens` random token ids.
    pub fn ids(tokens: usize, random: &mut WorkloadRng) -> Self {
        RequestPrompt::Ids((0..tokens).map(|_| IDS.start + random.below(IDS.len())).collect())
    }

    /// Returns `tokens` random words.
    pub fn words(tokens: usize, random: &mut WorkloadRng) -> Self {
        RequestPrompt::Text((0..tokens).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" "))
    }
}

/// A server.
pub struct Endpoint {
    client: Client,
    url: String,
    model: String,
    max_len: Option<usize>,
    timeout: Duration,
    ignore_eos: bool,
    fields: Map<String, Value>,
}

/// How to talk to a server.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// The server's address, without `/v1`.
    pub url: String,
    /// The model to request. If `None`, the first model that the server lists.
    pub model: Option<String>,
    /// The key to send.
    pub api_key: Option<String>,
    /// The time limit for an answer.
    pub timeout: Duration,
    /// Whether to send `ignore_eos`, which keeps outputs from ending early. OpenAI's own servers refuse it.
    pub ignore_eos: bool,
    /// Additional fields of each request. They override the client's own fields.
    pub fields: Map<String, Value>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    max_model_len: Option<usize>,
}

impl Endpoint {
    /// Connects to a server. Unless a model is given, asks the server for its models.
    ///
    /// # Errors
    /// If the server cannot be reached or lists no models.
    pub async fn connect(options: EndpointOptions) -> Result<Self> {
        let EndpointOptions { url, model, api_key, timeout, ignore_eos, fields } = options;
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let client = Client::new(api_key.as_deref())?;
        let (model, max_len) = (model.unwrap_or_default(), None);
        let mut endpoint = Endpoint { client, url, model, max_len, timeout, ignore_eos, fields };
        if endpoint.model.is_empty() {
            let Model { id, max_model_len } = endpoint.first_model().await?;
            (endpoint.model, endpoint.max_len) = (id, max_model_len);
        }
        Ok(endpoint)
    }

    /// Returns the name of the requested model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the maximum length of prompt and output together, if the server states it.
    pub fn max_len(&self) -> Option<usize> {
        self.max_len
    }

    async fn first_model(&self) -> Result<Model> {
        let ask = async {
            let mut response = self.client.get(&format!("{}/v1/models", self.url)).await?;
            let status = response.status();
            ensure!(status.is_success(), "status {}: {}", status.as_u16(), message(response).await);
            let mut body = Vec::new();
            while let Some(bytes) = chunk(&mut response).await? {
                body.extend_from_slice(&bytes);
            }
            Ok(serde_json::from_slice::<Models>(&body)?)
        };
        let models = tokio::time::timeout(self.timeout, ask).await.map_err(anyhow::Error::from).flatten();
        let models = models.with_context(|| format!("cannot ask {} for its models", self.url))?;
        models.data.into_iter().next().with_context(|| format!("{} has no models", self.url))
    }

    /// Requests `lengths.output` tokens after a prompt, and waits for them. Failures are recorded in the result.
    /// `arrival` is relative to `start`.
    pub async fn ask(&self, prompt: &RequestPrompt, lengths: Lengths, arrival: Duration, start: Instant) -> Record {
        let outcome = tokio::time::timeout(self.timeout, self.stream(prompt, lengths, start)).await;
        let late = || Err(format!("no answer within {} s", self.timeout.as_secs_f64()));
        Record { arrival, end: start.elapsed(), outcome: outcome.unwrap_or_else(|_| late()) }
    }

    async fn stream(&self, prompt: &RequestPrompt, lengths: Lengths, start: Instant) -> Result<Answer, String> {
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": lengths.output,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        self.fields.iter().for_each(|(name, value)| body[name] = value.clone());
        let url = format!("{}/v1/completions", self.url);
        let mut response = self.client.post(&url, &body).await.map_err(sentence)?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("status {}: {}", status.as_u16(), message(response).await));
        }
        let (mut events, mut received) = (Events::default(), Received::default());
        // Read the body to its very end, so the connection can be reused.
        while let Some(bytes) = chunk(&mut response).await.map_err(sentence)? {
            let now = start.elapsed();
            for data in events.push(&bytes)? {
                received.take(&data, now).map_err(|why| short(&why))?;
            }
        }
        received.answer(lengths)
    }
}

/// Returns the message of a server's error response.
async fn message(mut response: Answered) -> String {
    let mut body = Vec::new();
    while let Ok(Some(bytes)) = chunk(&mut response).await
        && body.len() < ERROR_BYTES
    {
        body.extend_from_slice(&bytes);
    }
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    short(json["error"]["message"].as_str().unwrap_or(&String::from_utf8_lossy(&body)))
}

/// Formats an error with its causes.
fn sentence(error: anyhow::Error) -> String {
    short(&format!("{error:#}"))
}

/// Shortens a message to one line of at most `ERROR_CHARS` characters.
fn short(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(ERROR_CHARS).collect()
}
