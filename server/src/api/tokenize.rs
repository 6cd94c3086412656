//! `POST /tokenize` and `POST /detokenize`, compatible with vLLM.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::tools::chat::{Arguments, Message};
use serde::{Deserialize, Serialize};

use super::conversation::Conversation;
use crate::app::{Admission, App};
use crate::body::Body;
use crate::error::{ApiError, check};

/// A text or a conversation to tokenize.
#[derive(Debug, Deserialize)]
pub struct Tokenize {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    /// Whether to add the special tokens that the model expects around a text. Defaults to true for a text and to false
    /// for a conversation.
    add_special_tokens: Option<bool>,
    /// Whether a conversation ends with the beginning of an answer.
    add_generation_prompt: Option<bool>,
    /// Whether a conversation ends within its last message.
    continue_final_message: Option<bool>,
    /// Additional variables for the chat template.
    chat_template_kwargs: Option<Arguments>,
    /// Whether to return the tokens' names too. Not supported.
    return_token_strs: Option<bool>,
}

/// The tokens of a text.
#[derive(Debug, Serialize)]
pub struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
}

/// Tokens to convert to text.
#[derive(Debug, Deserialize)]
pub struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The text of tokens.
#[derive(Debug, Serialize)]
pub struct Text {
    prompt: String,
}

/// Converts a text or a conversation to tokens. It may have more tokens than the model has positions.
pub async fn tokenize(
    State(app): State<Arc<App>>,
    _admission: Admission,
    Body(ask): Body<Tokenize>,
) -> Result<Json<Tokens>, ApiError> {
    app.check_model(ask.model.as_deref())?;
    check(ask.return_token_strs != Some(true), "return_token_strs", || {
        "return_token_strs is not supported; it may only be false or null".into()
    })?;
    let (_, tokens) = match (ask.prompt, ask.messages) {
        (Some(prompt), None) => {
            let special = ask.add_special_tokens.unwrap_or(true);
            app.texts.encode("prompt", vec![prompt], special, None).await?.pop().unwrap_or_default()
        }
        (None, Some(messages)) => {
            let conversation = Conversation {
                messages,
                add_generation_prompt: ask.add_generation_prompt,
                continue_final_message: ask.continue_final_message,
                chat_template_kwargs: ask.chat_template_kwargs,
                add_special_tokens: ask.add_special_tokens,
                ..Conversation::default()
            };
            conversation.prompt(&app, "messages", None).await?
        }
        _ => return Err(ApiError::field("prompt", "exactly one of prompt and messages must be set")),
    };
    Ok(Json(Tokens { count: tokens.len(), max_model_len: app.context_len(), tokens }))
}

/// Converts tokens to text.
pub async fn detokenize(
    State(app): State<Arc<App>>,
    _admission: Admission,
    Body(ask): Body<Detokenize>,
) -> Result<Json<Text>, ApiError> {
    app.check_model(ask.model.as_deref())?;
    let (prompt, _) = app.texts.decode("tokens", vec![ask.tokens], false, None).await?.pop().unwrap_or_default();
    Ok(Json(Text { prompt }))
}
