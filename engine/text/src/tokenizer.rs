//! Converts text to token ids and back, with the `tokenizers` crate.

mod anatomy;
mod bounds;
mod bytes;
mod pieces;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, PostProcessorWrapper};

use self::anatomy::Anatomy;
pub(crate) use self::bytes::TokenBytes;
use self::pieces::{Cuts, Pieces};
use checkpoint::config::{ModelConfig, ModelFamily};
use checkpoint::error::{Error, Result};
use checkpoint::load::ModelFiles;

/// The files that make up a tokenizer. A model has only some of them.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles<'a> {
    /// The location of the files, for error messages.
    pub place: String,
    /// `tokenizer.json`, which is sufficient alone.
    pub tokenizer_json: Option<&'a [u8]>,
    /// `vocab.json`.
    pub vocab: Option<&'a [u8]>,
    /// `merges.txt`.
    pub merges: Option<&'a [u8]>,
    /// `added_tokens.json`.
    pub added_tokens: Option<&'a [u8]>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<&'a [u8]>,
    /// Whether there is a `tokenizer.model`.
    pub sentencepiece: bool,
}

/// A model's tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Ids from this on have no row in the model's embedding.
    limit: u32,
    /// The most bytes that a token can stand for, if known.
    longest: Option<usize>,
    /// Encodes long texts in pieces, if the tokenizer allows that.
    pieces: Option<Pieces>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a model with configuration `config`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if its files are missing or damaged.
    pub fn of_model(files: &ModelFiles, config: &ModelConfig) -> Result<Self> {
        let tokenizer_json = files.read("tokenizer.json")?;
        let (vocab, merges, added_tokens) = match tokenizer_json {
            Some(_) => (None, None, None),
            None => (files.read("vocab.json")?, files.read("merges.txt")?, files.read("added_tokens.json")?),
        };
        Self::from_files(
            &TokenizerFiles {
                place: files.place(),
                tokenizer_json: tokenizer_json.as_deref(),
                vocab: vocab.as_deref(),
                merges: merges.as_deref(),
                added_tokens: added_tokens.as_deref(),
                tokenizer_config: files.read("tokenizer_config.json")?.as_deref(),
                special_tokens_map: files.read("special_tokens_map.json")?.as_deref(),
                sentencepiece: files.has("tokenizer.model"),
            },
            config,
        )
    }

    /// Builds the tokenizer of a model with configuration `config` from the contents of its files.
    pub fn from_files(files: &TokenizerFiles<'_>, config: &ModelConfig) -> Result<Self> {
        let settings = object(files.tokenizer_config, "tokenizer_config.json")?;
        let mut inner = match (files.tokenizer_json, files.vocab, files.merges) {
            (Some(json), _, _) => from_json(json)?,
            (None, Some(vocab), Some(merges)) => from_parts(vocab, merges, files, &settings, config)?,
            _ if files.sentencepiece => {
                return Err(Error::Tokenizer(format!(
                    "{} has only a sentencepiece tokenizer.model, which is not read; convert it to tokenizer.json",
                    files.place
                )));
            }
            _ => return Err(Error::Tokenizer(format!("{} has no tokenizer.json", files.place))),
        };
        // Padding and truncation are leftovers of training. A prompt is encoded whole and alone.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| Error::Tokenizer(error.to_string()))?;
        let limit = u32::try_from(config.vocab_size).unwrap_or(u32::MAX);
        let mut tokenizer = Tokenizer { inner, limit, longest: None, pieces: None };
        tokenizer.add_bos(&settings, files, config)?;
        let parts = Anatomy::of(&tokenizer.inner);
        let longest = parts.as_ref().and_then(bounds::longest_token);
        let cuts = parts.as_ref().and_then(Cuts::of);
        tokenizer.pieces = cuts.zip(tokenizer.around()).map(|(cuts, around)| Pieces::new(cuts, around));
        tokenizer.longest = longest;
        Ok(tokenizer)
    }

    /// The special tokens before and after every text. `None` if they differ between texts.
    fn around(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let split = |text: &str| {
            let (plain, special) = (self.whole(text, false).ok()?, self.whole(text, true).ok()?);
            let before = special.windows(plain.len().max(1)).position(|ids| ids == plain)?;
            Some((special[..before].to_vec(), special[before + plain.len()..].to_vec()))
        };
        // Check a second text, in case the special tokens look like the first.
        split("a").filter(|around| split("b c").as_ref() == Some(around))
    }

    /// Adds a BOS token to texts if the model's files ask for it and the post-processor does not add one. Files
    /// converted from the slow tokenizers say so only in `tokenizer_config.json`.
    fn add_bos(
        &mut self,
        settings: &serde_json::Map<String, Value>,
        files: &TokenizerFiles<'_>,
        config: &ModelConfig,
    ) -> Result<()> {
        let from_parts = files.tokenizer_json.is_none();
        let wanted = match settings.get("add_bos_token").and_then(Value::as_bool) {
            Some(wanted) => wanted,
            // OPT was trained with a BOS token, even if its files do not say so.
            None => from_parts && matches!(config.family, ModelFamily::Opt(_)),
        };
        if !wanted || !self.encode("")?.is_empty() {
            return Ok(());
        }
        let map = object(files.special_tokens_map, "special_tokens_map.json")?;
        let named = content(settings.get("bos_token")).or(content(map.get("bos_token")));
        let token = match named {
            Some(token) => Some(token.to_owned()),
            None => config.bos_token_id.and_then(|id| self.inner.id_to_token(id)),
        };
        let Some((token, id)) = token.and_then(|token| self.inner.token_to_id(&token).map(|id| (token, id))) else {
            return Ok(());
        };
        let quoted = |error: &dyn std::fmt::Display| Error::Tokenizer(format!("BOS token {token:?}: {error}"));
        let template = TemplateProcessing::builder()
            .try_single(vec![token.clone(), "$A".to_owned()])
            .map_err(|error| quoted(&error))?
            .special_tokens(vec![(token.clone(), id)])
            .build()
            .map_err(|error| quoted(&error))?;
        self.inner.with_post_processor(Some(PostProcessorWrapper::Template(template)));
        Ok(())
    }

    /// The ids of `text`, with the special tokens that the model expects around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_up_to(text, true, usize::MAX)
    }

    /// The ids of `text`, without special tokens around it.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_up_to(text, false, usize::MAX)
    }

    /// The ids of `text`, with the special tokens that the model expects around it if `special`. Text longer than
    /// `most` tokens may be truncated, but the result still exceeds `most`. So a text that is too long need not be
    /// encoded to its end.
    pub fn encode_up_to(&self, text: &str, special: bool, most: usize) -> Result<Vec<u32>> {
        match &self.pieces {
            Some(pieces) if pieces.has_several(text) => {
                pieces.encode(text, special, most, |piece| self.whole(piece, false))
            }
            _ => self.whole(text, special),
        }
    }

    /// A lower bound on the number of tokens of a text of `bytes` bytes. 0 if no bound is known.
    pub fn least_tokens(&self, bytes: usize) -> usize {
        self.longest.map_or(0, |longest| bytes.div_ceil(longest))
    }

    fn whole(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = guarded("encoding the text", || self.inner.encode_fast(text, special))?;
        let ids = encoding.get_ids();
        match ids.iter().find(|id| **id >= self.limit) {
            None => Ok(ids.to_vec()),
            Some(id) => Err(Error::Tokenizer(format!(
                "the text has token {id}, but the model's vocabulary ends at {}",
                self.limit.saturating_sub(1)
            ))),
        }
    }

    /// The text of `ids`. Unknown ids are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guarded("decoding tokens", || self.inner.decode(ids, skip_special))
    }

    /// The number of tokens, including added ones. The model's vocabulary may be padded to more.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Serialises the tokenizer as a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if a part of it cannot be serialised.
    pub fn to_json(&self) -> Result<String> {
        guarded("writing the tokenizer", || self.inner.to_string(false))
    }

    /// The id of the token with this exact name.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The id of the special token with this exact name.
    pub fn special_token(&self, token: &str) -> Option<u32> {
        self.token_id(token).filter(|_| self.inner.get_added_vocabulary().is_special_token(token))
    }

    /// The role of a token in decoding.
    pub(crate) fn role(&self, id: u32) -> Role {
        match self.inner.id_to_token(id) {
            None => Role::Silent,
            Some(token) if self.inner.get_added_vocabulary().is_special_token(&token) => Role::Special,
            Some(token) if is_byte(&token) => Role::Byte,
            Some(_) => Role::Text,
        }
    }
}

/// The role of a token in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// No text: the token is not in the vocabulary.
    Silent,
    /// A special token, whose text can be left out.
    Special,
    /// One byte, named `<0x0A>` for example. A run of them is decoded as a whole.
    Byte,
    /// Text, or bytes in the byte-level alphabet.
    Text,
}

fn is_byte(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Runs a function of the `tokenizers` crate and turns a panic into an error. Some combinations of settings make the
/// crate panic, and a damaged file must not end the process.
fn guarded<T>(doing: &str, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::Tokenizer(format!("{doing}: {error}"))),
        Err(_) => Err(Error::Tokenizer(format!("{doing} failed; the tokenizer's files are damaged"))),
    }
}

fn from_json(json: &[u8]) -> Result<tokenizers::Tokenizer> {
    // Some of the crate's readers panic at a syntax error, so check the syntax first. This takes a few milliseconds.
    let text = std::str::from_utf8(json).map_err(|_| Error::Tokenizer("tokenizer.json is not UTF-8".into()))?;
    parse::<serde::de::IgnoredAny>(text.as_bytes(), "tokenizer.json")?;
    guarded("reading tokenizer.json", || tokenizers::Tokenizer::from_bytes(json))
}

/// A byte-level BPE tokenizer from the files of the slow GPT-2 tokenizer, which OPT shares.
fn from_parts(
    vocab: &[u8],
    merges: &[u8],
    files: &TokenizerFiles<'_>,
    settings: &serde_json::Map<String, Value>,
    config: &ModelConfig,
) -> Result<tokenizers::Tokenizer> {
    if matches!(config.family, ModelFamily::Decoder(_)) {
        // These files do not say how to split the text, and the models of this family differ in that.
        return Err(Error::Tokenizer(format!("{} has no tokenizer.json", files.place)));
    }
    let vocab: BTreeMap<String, u32> = parse(vocab, "vocab.json")?;
    let merges = std::str::from_utf8(merges).map_err(|_| Error::Tokenizer("merges.txt is not UTF-8".into()))?;
    let merges = merges
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.is_empty())
        .map(|line| match line.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => Ok((left.to_owned(), right.to_owned())),
            _ => Err(Error::Tokenizer("merges.txt has a line that is not two tokens".into())),
        })
        .collect::<Result<Vec<_>>>()?;
    let model = guarded("reading vocab.json and merges.txt", || {
        BPE::builder().vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges).build()
    })?;
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    inner.with_decoder(Some(ByteLevel::default()));
    inner.with_post_processor(None::<PostProcessorWrapper>);
    add_special(&mut inner, files, settings, config)?;
    Ok(inner)
}

/// Adds the special tokens named in the slow tokenizer's files, in the order of their ids.
fn add_special(
    inner: &mut tokenizers::Tokenizer,
    files: &TokenizerFiles<'_>,
    settings: &serde_json::Map<String, Value>,
    config: &ModelConfig,
) -> Result<()> {
    let map = object(files.special_tokens_map, "special_tokens_map.json")?;
    let mut tokens: BTreeMap<u32, AddedToken> = BTreeMap::new();
    let mut unnumbered = Vec::new();
    if let Some(text) = files.added_tokens {
        let added: BTreeMap<String, u32> = parse(text, "added_tokens.json")?;
        tokens.extend(added.into_iter().map(|(content, id)| (id, AddedToken::from(content, true))));
    }
    if let Some(Value::Object(added)) = settings.get("added_tokens_decoder") {
        for (id, token) in added {
            if let (Ok(id), Some(token)) = (id.parse(), added_token(token)) {
                tokens.insert(id, token);
            }
        }
    }
    for name in ["bos_token", "eos_token", "unk_token", "pad_token", "additional_special_tokens"] {
        let value = map.get(name).or(settings.get(name)).unwrap_or(&Value::Null);
        let several = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        unnumbered.extend(several.iter().filter_map(added_token));
    }
    if unnumbered.is_empty() && tokens.is_empty() {
        let usual: &[&str] =
            if matches!(config.family, ModelFamily::Opt(_)) { &["</s>", "<pad>"] } else { &["<|endoftext|>"] };
        let present = usual.iter().filter(|token| inner.token_to_id(token).is_some());
        unnumbered.extend(present.map(|token| AddedToken::from(*token, true)));
    }
    for (id, token) in tokens {
        let content = token.content.clone();
        inner.add_special_tokens([token]).map_err(|error| Error::Tokenizer(error.to_string()))?;
        if inner.token_to_id(&content) != Some(id) {
            return Err(Error::Tokenizer(format!("the added token {content:?} cannot have the id {id}")));
        }
    }
    for token in unnumbered.into_iter().filter(|token| !token.content.is_empty()) {
        inner.add_special_tokens([token]).map_err(|error| Error::Tokenizer(error.to_string()))?;
    }
    Ok(())
}

/// Parses a special token, which is a string or an object.
fn added_token(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    let token = AddedToken::from(content(Some(value))?, true);
    Some(token.single_word(flag("single_word")).lstrip(flag("lstrip")).rstrip(flag("rstrip")))
}

fn content(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::String(content) => Some(content),
        object => object.get("content")?.as_str(),
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &[u8], file: &str) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| Error::Tokenizer(format!("{file}: {error}")))
}

/// Parses the object in an optional file. Empty without the file.
fn object(text: Option<&[u8]>, file: &str) -> Result<serde_json::Map<String, Value>> {
    text.map_or_else(|| Ok(serde_json::Map::new()), |text| parse(text, file))
}
