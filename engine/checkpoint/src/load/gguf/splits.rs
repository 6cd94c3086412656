//! The rules by which byte-level tokenizers split texts, with their names in GGUF files.

use serde_json::{Value, json};

use crate::error::{Error, Result};

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Letters that have a case.
const CASED: &str = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ\u{1fbe}ῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃";
const CHINESE: &str = "[一-龥ࠀ-一가-퟿]+";
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// How texts are normalised and split.
#[derive(Debug, PartialEq)]
pub(super) struct Split {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    /// Whether a word that is a token is used directly, without merging.
    pub ignore_merges: bool,
}

/// The supported names of each rule. The first is used for writing.
const NAMES: [&[&str]; 11] = [
    &["gpt-2", "gpt2", "phi-2", "olmo", "jina-v2-code"],
    &["llama-bpe", "llama3", "llama-v3"],
    &["qwen2", "deepseek-r1-qwen"],
    &["tekken"],
    &["smollm", "refact"],
    &["dbrx", "glm4", "chatglm-bpe"],
    &["gpt-4o"],
    &["command-r"],
    &["deepseek-v3"],
    &["deepseek-llm"],
    &["deepseek-coder"],
];

/// Returns the rule of this name.
pub(super) fn named(name: &str) -> Result<Split> {
    match NAMES.iter().position(|names| names.contains(&name)) {
        Some(rule) => Ok(split(rule)),
        None => {
            let shown: String = name.chars().take(40).collect();
            let known = NAMES.map(|names| names[0]).join(", ");
            Err(Error::Tokenizer(format!(
                "texts would be split by the rule {shown:?}, which is not implemented; {known} are"
            )))
        }
    }
}

/// Returns the name of the rule that a `tokenizer.json` uses, if it is supported. Of several rules that split texts in
/// this way, it prefers one that also normalises and merges them in this way.
pub(super) fn name_of(tokenizer: &Value) -> Option<&'static str> {
    let splits =
        |rule: &usize| without_offsets(&split(*rule).pre_tokenizer) == without_offsets(&tokenizer["pre_tokenizer"]);
    let is_exact = |rule: &usize| {
        let split = split(*rule);
        split.normalizer == tokenizer["normalizer"]
            && split.ignore_merges == (tokenizer["model"]["ignore_merges"] == true)
    };
    let mut fitting = (0..NAMES.len()).filter(splits);
    let first = fitting.clone().next();
    fitting.find(is_exact).or(first).map(|rule| NAMES[rule][0])
}

/// Removes the settings that do not affect the tokens from a pre-tokenizer.
fn without_offsets(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| *name != "trim_offsets")
            .map(|(k, v)| (k.clone(), without_offsets(v)))
            .collect(),
        Value::Array(items) => items.iter().map(without_offsets).collect(),
        other => other.clone(),
    }
}

fn split(rule: usize) -> Split {
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let one =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let sequence = |parts: &[&str], rest: &[Value]| {
        let all = parts.iter().map(|regex| one(regex)).chain(rest.iter().cloned());
        json!({"type": "Sequence", "pretokenizers": all.collect::<Vec<_>>()})
    };
    let by = |parts: &[&str]| sequence(parts, &[bytes(false)]);
    let digits = json!({"type": "Digits", "individual_digits": true});
    let (pre_tokenizer, composed, ignore_merges) = match rule {
        0 => (bytes(true), false, false),
        1 => (by(&[LLAMA_3]), false, true),
        2 => (by(&[QWEN_2]), true, false),
        3 => (by(&[TEKKEN]), false, true),
        4 => (sequence(&[], &[digits, bytes(true)]), false, false),
        5 => (by(&[LLAMA_3]), false, false),
        6 => (by(&[GPT_4O]), false, false),
        8 => (by(&DEEPSEEK_V3), false, false),
        9 => {
            let words = format!(r"\s?[{CASED}]+");
            let parts = ["[\r\n]", &words, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CHINESE];
            (sequence(&parts, &[digits, bytes(false)]), false, false)
        }
        10 => {
            let parts = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE];
            (sequence(&parts, &[digits, bytes(false)]), false, false)
        }
        _ => (sequence(&[], &[digits, bytes(true)]), true, false),
    };
    Split { normalizer: if composed { json!({"type": "NFC"}) } else { Value::Null }, pre_tokenizer, ignore_merges }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_its_names_and_by_its_parts() {
        for (rule, names) in NAMES.iter().enumerate() {
            assert!(names.iter().all(|name| named(name).unwrap() == split(rule)), "{names:?}");
            let Split { normalizer, pre_tokenizer, ignore_merges } = split(rule);
            let model = json!({"ignore_merges": ignore_merges});
            let json = json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model});
            assert_eq!(name_of(&json), Some(names[0]));
        }
        assert!(named("other").is_err_and(|error| error.to_string().contains("gpt-2, llama-bpe")));
        assert_eq!(name_of(&json!({"pre_tokenizer": {"type": "Whitespace"}})), None);
    }
}
