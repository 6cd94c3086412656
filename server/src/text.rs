//! Texts to tokens and back: a bounded amount at a time, since both take many times the memory of the text.

use std::sync::Arc;

use engine::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Up to this many bytes are dealt with at once, more on a thread for blocking work.
const SHORT: usize = 16 << 10;
/// Bytes that are dealt with at a time on such threads; a request with more has them to itself.
const ROOM: usize = 4 << 20;
/// Requests that are dealt with at a time there, so that they leave the processor to others.
const TURNS: usize = 2;

/// A text and its tokens.
pub type Encoded = (String, Vec<u32>);

/// Makes tokens of texts and texts of tokens; requests with long ones take turns.
#[derive(Clone, Debug)]
pub struct Texts {
    tokenizer: Arc<Tokenizer>,
    /// Token ids are below this.
    vocab_size: usize,
    room: Arc<Semaphore>,
}

impl Texts {
    /// Conversions by `tokenizer`, for a model whose token ids are below `vocab_size`. No request has a turn yet.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Texts { tokenizer, vocab_size, room: Arc::new(Semaphore::new(ROOM)) }
    }

    /// Does `work` on `bytes` bytes of text when there is room for it.
    async fn take<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= SHORT {
            return work();
        }
        let room = u32::try_from(bytes.clamp(ROOM / TURNS, ROOM)).unwrap_or(u32::MAX);
        // The semaphore is never closed. The turn lasts as long as the work, though the client may go meanwhile.
        let turn = self.room.clone().acquire_many_owned(room).await;
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?
    }

    /// The ids of texts, with the special tokens the model expects around each if `special`. Long texts wait for their
    /// turn, and do not hold up other requests.
    ///
    /// # Errors
    /// 400 about `param` if a text has no encoding, or more than `most` tokens. The latter is told from its length
    /// alone where that is enough.
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

    /// The texts of tokens, without special tokens if `plain`. Many tokens wait for their turn.
    ///
    /// # Errors
    /// 400 about `param` if a token is none of the model's, or a list has more than `most`, or no text.
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

/// 400: a prompt of `least` tokens or more, where the model has `most` positions.
fn too_long(param: &str, most: usize, least: usize) -> ApiError {
    let why =
        format!("this model's maximum context length is {most} tokens, but the prompt has {least} tokens or more");
    ApiError::context_length(param, why)
}
