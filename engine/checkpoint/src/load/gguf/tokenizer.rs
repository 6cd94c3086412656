//! Converts a GGUF file's tokenizer to the `tokenizer.json` and `tokenizer_config.json` of a Hugging Face model.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::config::architecture;
use super::kinds::{CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use super::metadata::Metadata;
use super::names::Architecture;
use super::splits;
use crate::error::{Error, Result};

/// Sentencepiece's replacement for a space.
const SPACE: &str = "\u{2581}";
/// Maximum length in bytes of a token whose merges are searched. Sentencepiece's own limit is far lower.
const MAX_PIECE: usize = 512;

/// A file's tokens.
struct Tokens<'a> {
    metadata: &'a Metadata,
    texts: &'a [String],
    kinds: Option<&'a [i64]>,
}

impl<'a> Tokens<'a> {
    fn new(metadata: &'a Metadata) -> Result<Self> {
        let texts = metadata.texts("tokenizer.ggml.tokens")?;
        let texts = texts.ok_or_else(|| missing("tokens"))?;
        let kinds = metadata.integers("tokenizer.ggml.token_type")?;
        if kinds.is_some_and(|kinds| kinds.len() != texts.len()) {
            return Err(Error::Tokenizer("the numbers of tokens and of their kinds differ".into()));
        }
        Ok(Tokens { metadata, texts, kinds })
    }

    /// Returns one of `kinds`. Unknown numbers count as normal tokens.
    fn kind(&self, id: usize) -> i32 {
        self.kinds.map_or(NORMAL, |kinds| i32::try_from(kinds[id]).unwrap_or(NORMAL))
    }

    /// Returns the ids of the real tokens, without those that pad the vocabulary to the rows of the embedding.
    fn ids(&self) -> impl Iterator<Item = usize> {
        (0..self.texts.len()).filter(|&id| self.kind(id) != UNUSED)
    }

    fn special(&self, name: &str) -> Result<Option<(usize, &'a str)>> {
        let id = self.metadata.integer(&format!("tokenizer.ggml.{name}_token_id"))?;
        let id = id.and_then(|id| usize::try_from(id).ok());
        Ok(id.and_then(|id| Some((id, self.texts.get(id)?.as_str()))))
    }

    /// Whether the token `name` ("bos" or "eos") is added to texts.
    fn adds(&self, name: &str) -> Result<bool> {
        let default = name == "bos" && (is_sentencepiece(self.metadata)? || pre(self.metadata)? == Some("llama-bpe"));
        Ok(self.metadata.bool(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    }

    /// Maps texts to ids. If two tokens have the same text, the first is used.
    fn vocabulary(&self) -> HashMap<&'a str, usize> {
        let mut vocabulary = HashMap::with_capacity(self.texts.len());
        for id in self.ids() {
            vocabulary.entry(self.texts[id].as_str()).or_insert(id);
        }
        vocabulary
    }

    /// Returns the added tokens, which are matched before a text is normalised.
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

    /// Returns the post-processor, which adds the tokens around a text.
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
    Ok(matches!(metadata.text("tokenizer.ggml.model")?, Some("llama" | "gemma4")))
}

/// Returns the name of the rule by which texts are split.
fn pre(metadata: &Metadata) -> Result<Option<&str>> {
    metadata.text("tokenizer.ggml.pre")
}

/// Builds the `tokenizer.json`.
pub(super) fn tokenizer(metadata: &Metadata) -> Result<Value> {
    let tokens = Tokens::new(metadata)?;
    let model = metadata.text("tokenizer.ggml.model")?.ok_or_else(|| missing("model"))?;
    let mut json = match model {
        "gpt2" => byte_level(&tokens)?,
        "llama" | "gemma4" => sentencepiece(&tokens)?,
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(Error::Tokenizer(format!(
                "tokenizers of the kind {shown:?} are not supported; gpt2, llama and gemma4 are"
            )));
        }
    };
    json["version"] = json!("1.0");
    json["added_tokens"] = tokens.added();
    json["post_processor"] = tokens.post_processor()?;
    Ok(json)
}

/// Builds the `tokenizer_config.json`: special tokens and the chat template.
pub(super) fn settings(metadata: &Metadata) -> Result<Value> {
    let mut json = Map::new();
    if let Ok(tokens) = Tokens::new(metadata) {
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

/// Builds a byte-level byte-pair encoding like GPT-2's.
fn byte_level(tokens: &Tokens<'_>) -> Result<Value> {
    let merges = tokens.metadata.texts("tokenizer.ggml.merges")?.ok_or_else(|| missing("merges"))?;
    let name = match pre(tokens.metadata)? {
        Some(name) => name,
        None => match architecture(tokens.metadata)? {
            Architecture::Gpt2 | Architecture::Opt => "gpt-2",
            Architecture::Qwen2 | Architecture::Qwen3 => "qwen2",
            _ => return Err(missing("pre")),
        },
    };
    let split = splits::named(name)?;
    let vocabulary = tokens.vocabulary();
    let merges = known_merges(merges, &vocabulary);
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

/// Returns the merges of strings that are tokens. Another merge has no effect, but would make the tokenizer invalid.
fn known_merges<'a>(merges: &'a [String], vocabulary: &HashMap<&str, usize>) -> Vec<&'a String> {
    let known = |merge: &&String| {
        merge.split_once(' ').is_some_and(|(left, right)| {
            vocabulary.contains_key(left)
                && vocabulary.contains_key(right)
                && vocabulary.contains_key(format!("{left}{right}").as_str())
        })
    };
    merges.iter().filter(known).collect()
}

/// Builds a character-level byte-pair encoding like sentencepiece's. Characters without a token are encoded as bytes.
/// Files of Gemma 4 list the merges. Other files have only the scores of tokens.
fn sentencepiece(tokens: &Tokens<'_>) -> Result<Value> {
    let vocabulary = tokens.vocabulary();
    let merges = match tokens.metadata.texts("tokenizer.ggml.merges")? {
        Some(merges) => json!(known_merges(merges, &vocabulary)),
        None => {
            let scores = tokens.metadata.floats("tokenizer.ggml.scores")?.ok_or_else(|| missing("scores"))?;
            if scores.len() != tokens.texts.len() {
                return Err(Error::Tokenizer("the numbers of tokens and of their scores differ".into()));
            }
            json!(merges(tokens, &vocabulary, scores))
        }
    };
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
            "merges": merges, "vocab": vocabulary,
        },
    }))
}

/// Derives the merges from the scores of sentencepiece's tokens. Every pair of tokens that forms a token is a merge.
/// Merges are in order of the formed token's score, highest first.
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
    // Equal scores are ordered by the ids of the parts, as in Hugging Face's converter.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    merges.into_iter().map(|(_, _, _, piece, at)| [piece[..at].to_owned(), piece[at..].to_owned()]).collect()
}
