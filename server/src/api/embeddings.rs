//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::Prompt;
use engine::SamplingParams;
use serde::{Deserialize, Serialize};
use tower_http::request_id::RequestId;

use super::answer::{Heading, Usage, collect};
use super::decoding::salt;
use super::prompt::PromptField;
use crate::app::{Admission, App};
use crate::body::OpenBody;
use crate::error::{ApiError, check};
use crate::worker::Work;

/// The fields of a request for embeddings.
#[derive(Debug, Deserialize)]
pub struct EmbeddingFields {
    input: PromptField,
    model: Option<String>,
    encoding_format: Option<Encoding>,
    /// The number of elements of an embedding. It must be the model's own.
    dimensions: Option<usize>,
    /// Whether to add the special tokens that the model expects around a text.
    add_special_tokens: Option<bool>,
    /// Cached prompts are shared only with requests of the same salt. vLLM's field.
    cache_salt: Option<String>,
    /// The urgency. Requests with lower numbers are served earlier. vLLM's field.
    priority: Option<i64>,
}

/// The encoding of embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// As numbers.
    Float,
    /// As base64 of the elements' bytes, each an f32 in little-endian order.
    Base64,
}

/// The embeddings of all inputs, in order.
#[derive(Debug, Serialize)]
pub struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: PromptUsage,
}

#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

/// The tokens of a request that generates no output.
#[derive(Debug, Serialize)]
struct PromptUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Embeds texts.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(request): Extension<RequestId>,
    admission: Admission,
    OpenBody(fields): OpenBody<EmbeddingFields>,
) -> Result<Json<Embeddings>, ApiError> {
    app.check_model(fields.model.as_deref())?;
    let width = app.config.output_width();
    check(fields.dimensions.is_none_or(|asked| asked == width), "dimensions", || {
        format!("dimensions can only be {width} with this model: its embeddings cannot be shortened")
    })?;
    let prompts = fields.input.encode(&app, "input", fields.add_special_tokens.unwrap_or(true)).await?;
    let prompts = prompts.into_iter().map(|(text, tokens)| Prompt::Encoded { text, tokens }).collect();
    let (pooling, priority) = (Some(app.options.pooling), fields.priority.unwrap_or(0));
    let cache_salt = fields.cache_salt.map(salt).transpose()?;
    let adapter = app.adapter(fields.model.as_deref())?;
    let params = SamplingParams { max_tokens: 0, pooling, priority, cache_salt, adapter, ..SamplingParams::default() };
    let heading = Heading::new(&app, "embd", &request, &params);
    let work = Work { prompts, params, field: "input", asked: None, stream: false };
    let answers = collect(&app, work, &admission).await?;
    let usage = Usage::of(&answers);
    heading.log(&usage, false);
    let encode = |embedding: Vec<f32>| match fields.encoding_format {
        Some(Encoding::Base64) => {
            let bytes: Vec<u8> = embedding.into_iter().flat_map(f32::to_le_bytes).collect();
            Vector::Base64(BASE64_STANDARD.encode(bytes))
        }
        Some(Encoding::Float) | None => Vector::Numbers(embedding),
    };
    let embeddings = answers.into_iter().enumerate().map(|(index, answer)| {
        // Only a request that an operator cancelled has no embedding.
        let embedding = answer.embedding.ok_or_else(|| ApiError::unavailable("the request was cancelled"))?;
        Ok(Embedding { object: "embedding", index, embedding: encode(embedding) })
    });
    Ok(Json(Embeddings {
        object: "list",
        data: embeddings.collect::<Result<_, ApiError>>()?,
        model: heading.model,
        usage: PromptUsage { prompt_tokens: usage.prompt_tokens, total_tokens: usage.total_tokens },
    }))
}
