//! Checks token bounds and encoding in pieces against the reference models' tokenizers on whole texts.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use checkpoint::load::ModelFiles;

/// Models with byte-level tokenizers: GPT-2's, LLaMA 3's and Qwen's.
const BYTE_LEVEL: [&str; 5] = ["gpt2", "opt-350m-like", "llama3", "qwen2", "qwen3"];
const SENTENCEPIECE: [&str; 2] = ["llama2", "mistral"];

fn directory(model: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden").join(model)
}

/// The tokenizer of a reference model, with a change in its `tokenizer.json`.
fn changed(model: &str, change: impl FnOnce(&mut Value)) -> Tokenizer {
    let files = ModelFiles::directory(directory(model)).unwrap();
    let mut json: Value = serde_json::from_slice(&files.read("tokenizer.json").unwrap().unwrap()).unwrap();
    change(&mut json);
    let json = serde_json::to_vec(&json).unwrap();
    let settings = files.read("tokenizer_config.json").unwrap();
    let files_of =
        TokenizerFiles { tokenizer_json: Some(&json), tokenizer_config: settings.as_deref(), ..Default::default() };
    let mut config = files.config().unwrap();
    config.vocab_size += 8;
    Tokenizer::from_files(&files_of, &config).unwrap()
}

fn tokenizer(model: &str) -> Tokenizer {
    changed(model, |_| {})
}

/// sentencepiece's tokenizer as current conversions write it.
fn metaspace(scheme: &str, split: bool) -> Tokenizer {
    changed("llama2", |json| {
        json["normalizer"] = Value::Null;
        json["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    })
}

/// Texts with every fragment that some tokenizer treats specially.
fn texts() -> impl Strategy<Value = String> {
    let fragments = prop::sample::select(vec![
        " ",
        " ",
        " ",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        " \n",
        "\t",
        "\r\n",
        "\u{a0}",
        "\u{85}",
        "\u{2028}",
        "\u{3000}",
        "a",
        "e",
        "the",
        "Once",
        "upon",
        "time",
        "ing",
        "I'll",
        "'s",
        "'S",
        "don't",
        "7",
        "1234",
        ".",
        "...",
        ",",
        "!?",
        "<",
        ">",
        "</s>",
        "<s>",
        "<unk>",
        "<|endoftext|>",
        "<|im_start|>",
        "<|begin_of_text|>",
        "▁",
        "▁▁",
        "_",
        "-",
        "\u{301}",
        "e\u{301}",
        "é",
        "K",
        "가",
        "ᄀ",
        "ᅡ",
        "漢字",
        "。",
        "слово",
        "😀",
        "👩\u{200d}👧",
        "\u{0}",
        "\u{feff}",
    ]);
    let mixed = prop::collection::vec(fragments, 0..60).prop_map(|fragments| fragments.concat());
    prop_oneof![4 => mixed, 1 => "\\PC{0,60}"]
}

fn in_pieces(tokenizer: &Tokenizer, size: usize) -> Tokenizer {
    let mut tokenizer = tokenizer.clone();
    tokenizer.pieces.as_mut().unwrap().set_size(size);
    tokenizer
}

/// Checks that encoding in pieces of 1 and 7 gives the same tokens as the whole text. With a limit, the result is complete or
/// a prefix of more than `most` tokens.
fn pieces_join(tokenizer: &Tokenizer) {
    let (small, middle) = (in_pieces(tokenizer, 1), in_pieces(tokenizer, 7));
    let parted = std::cell::Cell::new(0);
    proptest!(|(text in texts(), special in any::<bool>(), most in 0..40usize)| {
        let whole = tokenizer.whole(&text, special).unwrap();
        for pieces in [&small, &middle] {
            parted.set(parted.get() + usize::from(pieces.pieces.as_ref().unwrap().has_several(&text)));
            prop_assert_eq!(&pieces.encode_up_to(&text, special, usize::MAX).unwrap(), &whole, "{:?}", text);
            let some = pieces.encode_up_to(&text, special, most).unwrap();
            prop_assert!(some == whole || (some.len() > most && whole.starts_with(&some)), "{:?}", text);
        }
    });
    assert!(parted.get() > 100, "only {} texts had several pieces", parted.get());
}

#[test]
fn byte_level_texts_are_encoded_in_pieces() {
    BYTE_LEVEL.iter().for_each(|model| pieces_join(&tokenizer(model)));
}

#[test]
fn sentencepiece_texts_are_encoded_in_pieces() {
    SENTENCEPIECE.iter().for_each(|model| pieces_join(&tokenizer(model)));
    for (scheme, split) in [("first", false), ("first", true), ("always", false), ("always", true)] {
        pieces_join(&metaspace(scheme, split));
    }
}

#[test]
fn no_text_has_fewer_tokens_than_its_length_allows() {
    let tokenizers: Vec<Tokenizer> = [&BYTE_LEVEL[..3], &SENTENCEPIECE]
        .concat()
        .into_iter()
        .map(tokenizer)
        .chain([metaspace("first", true)])
        .collect();
    for tokenizer in tokenizers {
        proptest!(|(text in texts())| {
            let ids = tokenizer.whole(&text, false).unwrap();
            prop_assert!(ids.len() >= tokenizer.least_tokens(text.len()), "{:?}", text);
        });
        // The longest token, repeated, reaches the bound.
        let longest = tokenizer.longest.unwrap();
        let text = (0..tokenizer.limit).filter_map(|id| tokenizer.decode(&[id], false).ok());
        let text = text.max_by_key(String::len).unwrap().repeat(100);
        assert!(tokenizer.least_tokens(text.len()) <= tokenizer.whole(&text, false).unwrap().len());
        assert_eq!(tokenizer.least_tokens(longest * 10), 10);
        assert_eq!(tokenizer.least_tokens(longest * 10 + 1), 11);
    }
}

/// There is no bound if a setting shortens the text or lets a token stand for text of any length. The given text breaks
/// the usual bound.
#[test]
fn no_bound_is_given_if_tokens_may_stand_for_more_text() {
    type Change = fn(&mut Value);
    let cases: [(&str, &str, Change, Option<String>); 9] = [
        ("gpt2", "NFC", |json| json["normalizer"] = json!({"type": "NFC"}), None),
        ("gpt2", "lowercase", |json| json["normalizer"] = json!({"type": "Lowercase"}), None),
        (
            "gpt2",
            "a replacement that is shorter",
            |json| {
                json["normalizer"] =
                    json!({"type": "Replace", "pattern": {"String": "once upon a time"}, "content": "o"});
            },
            Some("once upon a time".repeat(100)),
        ),
        (
            "llama3",
            "separators that are left out",
            |json| json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = json!("Removed"),
            Some("once upon a time".repeat(100)),
        ),
        ("gpt2", "words without spaces", |json| json["pre_tokenizer"] = json!({"type": "Whitespace"}), None),
        (
            "gpt2",
            "an added token that takes spaces",
            |json| json["added_tokens"][0]["lstrip"] = json!(true),
            Some(format!("{}<|endoftext|>", " ".repeat(1000))),
        ),
        (
            "llama2",
            "unknown characters as one token",
            |json| json["model"]["byte_fallback"] = json!(false),
            Some("\u{1f600}".repeat(100)),
        ),
        ("llama2", "a byte that is no token", |json| rename(json, "<0xF0>", "<0xF0"), Some("\u{1f600}".repeat(100))),
        ("gpt2", "a byte that is left out", |json| rename(json, "Ā", "ĀĀ"), Some("\u{0}".repeat(100))),
    ];
    for (model, what, change, text) in cases {
        let usual = tokenizer(model);
        let changed = changed(model, change);
        assert_eq!(changed.least_tokens(1 << 40), 0, "{what}");
        if let Some(text) = text {
            let tokens = changed.whole(&text, false).unwrap().len();
            assert!(tokens < usual.least_tokens(text.len()), "{what}: {tokens}");
        }
    }
    assert_eq!(tokenizer("qwen2").least_tokens(1 << 40), 0);
}

/// Renames a token and removes its merges.
fn rename(json: &mut Value, token: &str, name: &str) {
    let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
    let id = vocabulary.remove(token).unwrap();
    vocabulary.insert(name.into(), id);
    json["model"]["merges"].as_array_mut().unwrap().retain(|merge| !merge.to_string().contains(token));
}

#[test]
fn unsupported_tokenizers_encode_texts_whole() {
    let uncut = |model: &str, change: fn(&mut Value)| assert!(changed(model, change).pieces.is_none(), "{model}");
    uncut("gpt2", |json| json["pre_tokenizer"]["add_prefix_space"] = json!(true));
    uncut("gpt2", |json| json["added_tokens"][0]["rstrip"] = json!(true));
    uncut("gpt2", |json| json["added_tokens"][0]["content"] = json!("<|end of text|>"));
    uncut("gpt2", |json| json["model"]["dropout"] = json!(0.1));
    uncut("gpt2", |json| json["normalizer"] = json!({"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}));
    uncut("llama3", |json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("[a-z ]+"));
    uncut("llama3", |json| json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = json!("MergedWithNext"));
    uncut("llama2", |json| json["model"]["byte_fallback"] = json!(false));
    // A token that spans two words.
    uncut("llama2", |json| rename(json, "<unk>", "a▁"));
    uncut("llama2", |json| json["pre_tokenizer"] = json!({"type": "Whitespace"}));
    assert!(metaspace("never", false).pieces.is_none());
}
