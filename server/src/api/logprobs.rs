//! Logprobs in OpenAI's two forms, and logprobs of prompts in vLLM's form.

use std::collections::BTreeMap;

use engine::tools::detokenizer::Detokenizer;
use engine::tools::sequence::{PromptLogprobs, TokenLogprob};
use engine::tools::tokenizer::Tokenizer;
use serde::{Serialize, Serializer};

/// The logprob reported for an impossible token, because JSON has no infinity. The number is vLLM's.
const IMPOSSIBLE: f32 = -9999.0;

/// How to name tokens.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The tokenizer for their texts.
    pub tokenizer: &'a Tokenizer,
    /// Whether to name tokens `token_id:<id>` instead of by their text.
    pub as_ids: bool,
}

impl Names<'_> {
    fn name(self, id: u32) -> String {
        if self.as_ids { format!("token_id:{id}") } else { text(self.tokenizer, id) }
    }
}

/// Logprobs of a completion.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompletionLogprobs {
    /// The text of each token by itself.
    pub tokens: Vec<String>,
    /// The logprob of each token. `None` for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position, and the token itself.
    pub top_logprobs: Vec<Option<Likeliest>>,
    /// The position of each token in the text, in characters.
    pub text_offset: Vec<usize>,
}

/// A position between two tokens in the text of a completion.
#[derive(Clone, Debug)]
pub struct Place {
    detokenizer: Detokenizer,
    /// Number of complete characters before it.
    offset: usize,
}

/// Logprobs of a prompt in vLLM's form. Each token but the first has the most likely tokens at its position and itself.
pub type ScoredPrompt = Vec<Option<BTreeMap<u32, ScoredToken>>>;

/// A candidate token at a position of a prompt.
#[derive(Debug, Serialize)]
pub struct ScoredToken {
    logprob: f32,
    /// Number of tokens that are at least as likely, including itself. `None` if the token is not among the most
    /// likely.
    rank: Option<usize>,
    decoded_token: String,
}

/// Converts the logprobs of a prompt into vLLM's form.
pub fn scored_prompt(entries: &PromptLogprobs, tokenizer: &Tokenizer) -> ScoredPrompt {
    let token = |id: u32, logprob: f32, rank: Option<usize>| {
        (id, ScoredToken { logprob: finite(logprob), rank, decoded_token: text(tokenizer, id) })
    };
    let scored = |entry: &TokenLogprob| {
        let itself = token(entry.token, entry.logprob, None);
        // If the token is among the most likely, this entry replaces the one without a rank.
        let likeliest = (1..).zip(&entry.top).map(|(rank, &(id, logprob))| token(id, logprob, Some(rank)));
        std::iter::once(itself).chain(likeliest).collect()
    };
    entries.iter().map(|entry| entry.as_ref().map(scored)).collect()
}

/// A JSON object that maps tokens to their logprobs, best first.
#[derive(Clone, Debug, Default)]
pub struct Likeliest(Vec<(String, f32)>);

/// Logprobs of a chat's answer.
#[derive(Debug, Serialize)]
pub struct ChatLogprobs {
    /// The tokens of the content.
    pub content: Vec<ChatToken>,
}

/// A token of a chat's answer.
#[derive(Debug, Serialize)]
pub struct ChatToken {
    #[serde(flatten)]
    token: NamedToken,
    /// The most likely tokens at its position.
    top_logprobs: Vec<NamedToken>,
}

/// A token with its name and logprob.
#[derive(Debug, Serialize)]
struct NamedToken {
    token: String,
    logprob: f32,
    /// The bytes of the text. `None` if the token is a part of a character.
    bytes: Option<Vec<u8>>,
}

impl CompletionLogprobs {
    /// Returns the logprobs of a prompt's `tokens`, which begin at `place`. Moves `place` past them.
    pub fn of_prompt(tokens: &[u32], logprobs: &PromptLogprobs, names: Names<'_>, place: &mut Place) -> Self {
        let mut all = CompletionLogprobs::default();
        for (&token, entry) in tokens.iter().zip(logprobs) {
            all.push(token, entry.as_ref(), names, place);
        }
        all
    }

    /// Adds `tokens`, which begin at `place`. Moves `place` past them.
    pub fn extend(&mut self, tokens: &[TokenLogprob], names: Names<'_>, place: &mut Place) {
        for entry in tokens {
            self.push(entry.token, Some(entry), names, place);
        }
    }

    fn push(&mut self, token: u32, entry: Option<&TokenLogprob>, names: Names<'_>, place: &mut Place) {
        let name = names.name(token);
        self.top_logprobs.push(entry.map(|entry| {
            let mut top = Likeliest::default();
            for &(id, logprob) in &entry.top {
                top.add(names.name(id), logprob);
            }
            top.add(name.clone(), entry.logprob);
            top
        }));
        self.token_logprobs.push(entry.map(|entry| finite(entry.logprob)));
        self.tokens.push(name);
        self.text_offset.push(place.offset);
        place.pass(token, names.tokenizer);
    }
}

impl Place {
    /// Returns the beginning of a text. The text omits special tokens if `skip_special`.
    pub fn new(skip_special: bool) -> Self {
        Place { detokenizer: Detokenizer::new(skip_special), offset: 0 }
    }

    /// Moves past a token. A token that cannot be decoded has no text.
    fn pass(&mut self, token: u32, tokenizer: &Tokenizer) {
        let text = self.detokenizer.push(tokenizer, token).unwrap_or_default();
        self.offset += text.chars().count();
    }
}

impl Likeliest {
    /// Adds a token unless one with the same name is already present.
    fn add(&mut self, token: String, logprob: f32) {
        if self.0.iter().all(|(other, _)| *other != token) {
            self.0.push((token, finite(logprob)));
        }
    }
}

impl Serialize for Likeliest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

impl ChatLogprobs {
    /// Returns the logprobs of `tokens`.
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a TokenLogprob>, names: Names<'_>) -> Self {
        let named = |id: u32, logprob: f32| {
            let text = text(names.tokenizer, id);
            let bytes = (!text.contains(char::REPLACEMENT_CHARACTER)).then(|| text.as_bytes().to_vec());
            NamedToken { token: names.name(id), logprob: finite(logprob), bytes }
        };
        let entry = |t: &TokenLogprob| ChatToken {
            token: named(t.token, t.logprob),
            top_logprobs: t.top.iter().map(|&(id, logprob)| named(id, logprob)).collect(),
        };
        ChatLogprobs { content: tokens.into_iter().map(entry).collect() }
    }
}

/// Returns the text of a single token. It is empty if the token cannot be decoded, as in a padded vocabulary.
fn text(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false).unwrap_or_default()
}

fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}
