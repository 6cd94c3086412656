//! Converts texts to tokens and back. The amount in progress is bounded, since both conversions need many times the
//! memory of the text.

use std::sync::Arc;

use engine::tools::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Maximum bytes converted inline. Larger amounts run on a thread for blocking work.
const SHORT: usize = 16 << 10;
/// Maximum bytes in conversion on such threads. A request with more takes the whole capacity.
const ROOM: usize = 4 << 20;
/// Maximum concurrent conversions there, which leaves processor time for other work.
const TURNS: usize = 2;

/// A text and its tokens.
pub type Encoded = (String, Vec<u32>);

/// Converts texts to tokens and back. Requests with long texts take turns.
#[derive(Clone, Debug)]
pub struct Texts {
    tokenizer: Arc<Tokenizer>,
    /// Token ids are smaller than this.
    vocab_size: usize,
    room: Arc<Semaphore>,
}

impl Texts {
    /// Converts with `tokenizer`, for a model with `vocab_size` token ids.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Texts { tokenizer, vocab_size, room: Arc::new(Semaphore::new(ROOM)) }
    }

    /// Runs `work` on `bytes` bytes of text once capacity for it is free.
    async fn take<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= SHORT {
            return work();
        }
        let room = u32::try_from(bytes.clamp(ROOM / TURNS, ROOM)).unwrap_or(u32::MAX);
        // The semaphore is never closed. The permit lasts as long as the work, even if the client disconnects.
        let turn = self.room.clone().acquire_many_owned(room).await;
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?
    }

    /// Returns the token ids of texts. If `special`, adds the special tokens that the model expects around each text.
    /// Long texts wait for their turn and do not delay other requests.
    ///
    /// # Errors
    /// 400 about `param` if a text cannot be encoded or has more than `most` tokens. If the length alone shows that a
    /// text has too many, it is not encoded.
    pub async fn encode(
        &self,
        param: &str,
        texts: Vec<String>,
        special: bool,
        most: Option<usize>,
    ) -> Result<Vec<Encoded>, ApiError> {
        let (tokenizer, param) = (self.tokenizer.clone(), param.to_owned());
        if let Some(most) = most
            && let Some(least) = texts.iter().map(|text| tokenizer.least_tokens(text.len())).find(|n| *n > most)
        {
            return Err(too_long(&param, most, least));
        }
        let bytes = texts.iter().map(String::len).sum();
        let encode = move |text: String| {
            let limit = most.unwrap_or(usize::MAX);
            let ids = tokenizer.encode_up_to(&text, special, limit);
            let ids = ids.map_err(|error| ApiError::field(param.as_str(), error.to_string()))?;
            if ids.len() > limit {
                return Err(too_long(&param, limit, ids.len()));
            }
            Ok((text, ids))
        };
        self.take(bytes, move || texts.into_iter().map(encode).collect()).await
    }

    /// Returns the texts of tokens, without special tokens if `plain`. Long lists wait for their turn.
    ///
    /// # Errors
    /// 400 about `param` if a token id is outside the vocabulary, a list has more than `most` tokens, or it cannot be
    /// decoded.
    pub async fn decode(
        &self,
        param: &str,
        lists: Vec<Vec<u32>>,
        plain: bool,
        most: Option<usize>,
    ) -> Result<Vec<Encoded>, ApiError> {
        let size = self.vocab_size;
        if lists.iter().flatten().any(|&id| id as usize >= size) {
            let why = format!("token ids must be below {size}, the size of the model's vocabulary");
            return Err(ApiError::field(param, why));
        }
        if let Some(most) = most
            && let Some(list) = lists.iter().find(|list| list.len() > most)
        {
            return Err(too_long(param, most, list.len()));
        }
        let (tokenizer, param) = (self.tokenizer.clone(), param.to_owned());
        let bytes = lists.iter().map(|list| size_of_val(list.as_slice())).sum();
        let decode = move |ids: Vec<u32>| {
            let text = tokenizer.decode(&ids, plain);
            Ok((text.map_err(|error| ApiError::field(param.as_str(), error.to_string()))?, ids))
        };
        self.take(bytes, move || lists.into_iter().map(decode).collect()).await
    }
}

/// 400: the prompt has at least `least` tokens, but the limit is `most`.
fn too_long(param: &str, most: usize, least: usize) -> ApiError {
    let why =
        format!("this model's maximum context length is {most} tokens, but the prompt has {least} tokens or more");
    ApiError::context_length(param, why)
}
