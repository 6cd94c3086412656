//! A GGUF file's tokenizer as the `tokenizer.json` and `tokenizer_config.json` that the model would have elsewhere.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::config::architecture;
use super::kinds::{CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use super::metadata::Metadata;
use super::names::Architecture;
use super::splits;
use crate::error::{Error, Result};

/// What sentencepiece writes for a space.
const SPACE: &str = "\u{2581}";
/// The longest token for which merges are looked for, in bytes. Sentencepiece's own limit is far below.
const MAX_PIECE: usize = 512;

/// What a file says of its tokens.
struct Tokens<'a> {
    metadata: &'a Metadata,
    texts: &'a [String],
    kinds: Option<&'a [i64]>,
}

impl<'a> Tokens<'a> {
    fn of(metadata: &'a Metadata) -> Result<Self> {
        let texts = metadata.texts("tokenizer.ggml.tokens")?;
        let texts = texts.ok_or_else(|| missing("tokens"))?;
        let kinds = metadata.integers("tokenizer.ggml.token_type")?;
        if kinds.is_some_and(|kinds| kinds.len() != texts.len()) {
            return Err(Error::Tokenizer("the file has not as many kinds of tokens as tokens".into()));
        }
        Ok(Tokens { metadata, texts, kinds })
    }

    /// One of `kinds`; a number that is none of them is of a token like others.
    fn kind(&self, id: usize) -> i32 {
        self.kinds.map_or(NORMAL, |kinds| i32::try_from(kinds[id]).unwrap_or(NORMAL))
    }

    /// The ids of tokens that there are. Others fill the vocabulary up to the rows of the embedding.
    fn ids(&self) -> impl Iterator<Item = usize> {
        (0..self.texts.len()).filter(|&id| self.kind(id) != UNUSED)
    }

    fn special(&self, name: &str) -> Result<Option<(usize, &'a str)>> {
        let id = self.metadata.integer(&format!("tokenizer.ggml.{name}_token_id"))?;
        let id = id.and_then(|id| usize::try_from(id).ok());
        Ok(id.and_then(|id| Some((id, self.texts.get(id)?.as_str()))))
    }

    /// Whether texts get the token that begins or ends one.
    fn adds(&self, name: &str) -> Result<bool> {
        let default = name == "bos" && (is_sentencepiece(self.metadata)? || pre(self.metadata)? == Some("llama-bpe"));
        Ok(self.metadata.bool(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    }

    /// The ids by their texts. Where two tokens have the same text, the first counts.
    fn vocabulary(&self) -> HashMap<&'a str, usize> {
        let mut vocabulary = HashMap::with_capacity(self.texts.len());
        for id in self.ids() {
            vocabulary.entry(self.texts[id].as_str()).or_insert(id);
        }
        vocabulary
    }

    /// The tokens that are found in a text before anything is done to it.
    fn added(&self) -> Value {
        let one = |id: usize| {
            let special = matches!(self.kind(id), CONTROL | UNKNOWN);
            let added = special || self.kind(id) == USER_DEFINED;
            added.then(|| {
                json!({"id": id, "content": self.texts[id], "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": special})
            })
        };
        self.ids().filter(|&id| !self.texts[id].is_empty()).filter_map(one).collect()
    }

    /// What is put around a text.
    fn post_processor(&self) -> Result<Value> {
        let around = |name: &str| -> Result<Option<(usize, &str)>> {
            Ok(if self.adds(name)? { self.special(name)? } else { None })
        };
        let (bos, eos) = (around("bos")?, around("eos")?);
        if bos.is_none() && eos.is_none() {
            return Ok(Value::Null);
        }
        let step = |token: &(usize, &str)| json!({"SpecialToken": {"id": token.1, "type_id": 0}});
        let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let around = |steps: Vec<Value>| -> Vec<Value> {
            bos.iter().map(step).chain(steps).chain(eos.iter().map(step)).collect()
        };
        let tokens = bos.iter().chain(&eos);
        let tokens: Map<String, Value> =
            tokens.map(|(id, text)| ((*text).to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}))).collect();
        Ok(json!({"type": "TemplateProcessing", "single": around(vec![sequence("A")]),
                  "pair": around(vec![sequence("A"), sequence("B")]), "special_tokens": tokens}))
    }
}

fn missing(name: &str) -> Error {
    Error::Tokenizer(format!("the file's metadata has no tokenizer.ggml.{name}"))
}

fn is_sentencepiece(metadata: &Metadata) -> Result<bool> {
    Ok(metadata.text("tokenizer.ggml.model")? == Some("llama"))
}

/// The name of the rule by which texts are split.
fn pre(metadata: &Metadata) -> Result<Option<&str>> {
    metadata.text("tokenizer.ggml.pre")
}

/// The `tokenizer.json`.
pub(super) fn tokenizer(metadata: &Metadata) -> Result<Value> {
    let tokens = Tokens::of(metadata)?;
    let model = metadata.text("tokenizer.ggml.model")?.ok_or_else(|| missing("model"))?;
    let mut json = match model {
        "gpt2" => byte_level(&tokens)?,
        "llama" => sentencepiece(&tokens)?,
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(Error::Tokenizer(format!("tokenizers of the kind {shown:?} are not read; gpt2 and llama are")));
        }
    };
    json["version"] = json!("1.0");
    json["added_tokens"] = tokens.added();
    json["post_processor"] = tokens.post_processor()?;
    Ok(json)
}

/// The `tokenizer_config.json`: special tokens and the chat template.
pub(super) fn settings(metadata: &Metadata) -> Result<Value> {
    let mut json = Map::new();
    if let Ok(tokens) = Tokens::of(metadata) {
        for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
            if let Some((_, text)) = tokens.special(key)? {
                json.insert(format!("{name}_token"), json!(text));
            }
        }
        json.insert("add_bos_token".into(), json!(tokens.adds("bos")?));
    }
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        json.insert("chat_template".into(), json!(template));
    }
    Ok(Value::Object(json))
}

/// A byte-pair encoding of bytes, like GPT-2's.
fn byte_level(tokens: &Tokens<'_>) -> Result<Value> {
    let merges = tokens.metadata.texts("tokenizer.ggml.merges")?.ok_or_else(|| missing("merges"))?;
    let name = match pre(tokens.metadata)? {
        Some(name) => name,
        None => match architecture(tokens.metadata)? {
            Architecture::Gpt2 | Architecture::Opt => "gpt-2",
            Architecture::Qwen2 | Architecture::Qwen3 => "qwen2",
            Architecture::Llama => return Err(missing("pre")),
        },
    };
    let split = splits::named(name)?;
    // A merge that names no tokens would refuse the whole tokenizer, and merges nothing.
    let vocabulary = tokens.vocabulary();
    let known = |merge: &&String| {
        merge.split_once(' ').is_some_and(|(left, right)| {
            vocabulary.contains_key(left)
                && vocabulary.contains_key(right)
                && vocabulary.contains_key(format!("{left}{right}").as_str())
        })
    };
    let merges: Vec<&String> = merges.iter().filter(known).collect();
    Ok(json!({
        "normalizer": split.normalizer,
        "pre_tokenizer": split.pre_tokenizer,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": split.ignore_merges, "vocab": vocabulary, "merges": merges,
        },
    }))
}

/// A byte-pair encoding of characters, with bytes for those that have no token, like sentencepiece's.
fn sentencepiece(tokens: &Tokens<'_>) -> Result<Value> {
    let scores = tokens.metadata.floats("tokenizer.ggml.scores")?.ok_or_else(|| missing("scores"))?;
    if scores.len() != tokens.texts.len() {
        return Err(Error::Tokenizer("the file has not as many scores as tokens".into()));
    }
    let vocabulary = tokens.vocabulary();
    let unknown = tokens.special("unknown")?.map(|(_, text)| text);
    let unknown = unknown.or_else(|| tokens.ids().find(|&id| tokens.kind(id) == UNKNOWN).map(|id| &*tokens.texts[id]));
    let space_first = tokens.metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let normalizer = match space_first {
        true => json!({"type": "Sequence", "normalizers": [prepend, replace]}),
        false => replace,
    };
    let back = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
    let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if space_first {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "merges": merges(tokens, &vocabulary, scores), "vocab": vocabulary,
        },
    }))
}

/// The merges that the scores of sentencepiece's tokens stand for: every pair of tokens that make a token, those that make
/// the one with the highest score first.
fn merges(tokens: &Tokens<'_>, vocabulary: &HashMap<&str, usize>, scores: &[f32]) -> Vec<[String; 2]> {
    let added: HashSet<usize> =
        tokens.ids().filter(|&id| matches!(tokens.kind(id), UNKNOWN | CONTROL | USER_DEFINED)).collect();
    let mut merges: Vec<(f32, usize, usize, &str, usize)> = Vec::new();
    for (&piece, &id) in vocabulary.iter().filter(|(piece, id)| piece.len() <= MAX_PIECE && !added.contains(id)) {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&left), Some(&right)) = (vocabulary.get(left), vocabulary.get(right)) {
                merges.push((scores[id], left, right, piece, at));
            }
        }
    }
    // Of the same score, as Hugging Face's converter has them: by the ids of the parts.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    merges.into_iter().map(|(_, _, _, piece, at)| [piece[..at].to_owned(), piece[at..].to_owned()]).collect()
}
