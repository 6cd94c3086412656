//! OpenAI's and vLLM's fields that have no effect on this server. Values that would change the answer are refused.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::json;

/// The fields of a body that have no effect.
#[derive(Debug)]
pub struct Inert;

/// The values that a field may have in addition to null.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// Only null.
    Null,
    Boolean,
    /// Only true.
    True,
    Text,
    EmptyText,
    /// One of these words.
    Word(&'static [&'static str]),
    EmptyArray,
    /// An array that contains only this word.
    Only(&'static str),
    Object,
    EmptyObject,
}

const FIELDS: &[(&str, Rule)] = &[
    // OpenAI's fields for audio, images and accounts, which this server does not support.
    ("audio", Rule::Null),
    // Codex's field.
    ("client_metadata", Rule::Object),
    ("function_call", Rule::Word(&["none", "auto"])),
    ("functions", Rule::EmptyArray),
    ("metadata", Rule::Object),
    ("modalities", Rule::Only("text")),
    ("prediction", Rule::Null),
    ("prompt_cache_key", Rule::Text),
    ("prompt_cache_retention", Rule::Text),
    ("safety_identifier", Rule::Text),
    ("service_tier", Rule::Text),
    ("store", Rule::Boolean),
    ("suffix", Rule::EmptyText),
    ("user", Rule::Text),
    ("web_search_options", Rule::Null),
    // Passed to chat templates that use them, or relevant only to chats.
    ("include_reasoning", Rule::Boolean),
    ("reasoning_effort", Rule::Text),
    ("verbosity", Rule::Text),
    // vLLM's fields.
    ("allowed_token_ids", Rule::Null),
    ("bad_words", Rule::EmptyArray),
    ("chat_template_content_format", Rule::Word(&["auto"])),
    ("detokenize", Rule::True),
    ("guided_decoding_backend", Rule::Text),
    ("guided_whitespace_pattern", Rule::Text),
    ("kv_transfer_params", Rule::Null),
    ("logits_processors", Rule::EmptyArray),
    ("mm_processor_kwargs", Rule::EmptyObject),
    ("prompt_embeds", Rule::Null),
    ("request_id", Rule::Null),
    // Only affects tokenizers written in Python. This server's tokenizers add no such spaces.
    ("spaces_between_special_tokens", Rule::Boolean),
    ("structural_tag", Rule::Null),
    ("thinking_token_budget", Rule::Null),
    ("truncate_prompt_tokens", Rule::Null),
    ("vllm_xargs", Rule::EmptyObject),
];

/// Fields that some endpoints have and others do not. The others accept values that have no effect.
const ELSEWHERE: [&str; 14] = [
    "add_generation_prompt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "max_completion_tokens",
    "parallel_tool_calls",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "tool_choice",
    "tools",
    "top_logprobs",
];

/// Whether a field that this endpoint does not have has no effect in this body.
pub fn has_no_effect(name: &str, body: &[u8]) -> bool {
    ELSEWHERE.contains(&name)
        && json::parse::<Value>(body).is_ok_and(|(body, _)| match &body[name] {
            // Without tools these fields have no effect.
            Value::Bool(_) if name == "parallel_tool_calls" => true,
            Value::String(word) if name == "tool_choice" => ["none", "auto"].contains(&word.as_str()),
            value if name.contains("tool") => {
                *value == Value::Null || *value == Value::Array(Vec::new()) && name == "tools"
            }
            Value::Null | Value::Bool(false) => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        })
}

const NAMES: [&str; FIELDS.len()] = {
    let mut names = [""; FIELDS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FIELDS[i].0;
        i += 1;
    }
    names
};

impl<'de> Deserialize<'de> for Inert {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Inert", &NAMES, Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Inert;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Inert, A::Error> {
        let mut seen = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            match FIELDS.iter().find(|field| field.0 == name) {
                Some((name, _)) if seen.contains(name) => return Err(A::Error::duplicate_field(name)),
                Some((name, rule)) => {
                    seen.push(*name);
                    map.next_value_seed(*rule)?;
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Inert)
    }
}

impl Rule {
    fn check<E: Error>(self, ok: bool) -> Result<(), E> {
        let refused = || E::custom(format_args!("not supported; it may only be {self}"));
        if ok { Ok(()) } else { Err(refused()) }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_null = match self {
            Rule::Null => return f.write_str("null"),
            Rule::Boolean => "true, false",
            Rule::True => "true",
            Rule::Text => "a string",
            Rule::EmptyText => "an empty string",
            Rule::Word(words) => {
                words.iter().try_for_each(|word| write!(f, "{word:?}, "))?;
                return f.write_str("or null");
            }
            Rule::EmptyArray => "an empty array",
            Rule::Only(word) => return write!(f, "[{word:?}] or null"),
            Rule::Object => "an object",
            Rule::EmptyObject => "an empty object",
        };
        write!(f, "{or_null} or null")
    }
}

impl<'de> DeserializeSeed<'de> for Rule {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rule {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.check(match self {
            Rule::Boolean => true,
            Rule::True => value,
            _ => false,
        })
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.check(false)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.check(false)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.check(false)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.check(match self {
            Rule::Text => true,
            Rule::EmptyText => value.is_empty(),
            Rule::Word(words) => words.contains(&value),
            _ => false,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        match self {
            Rule::EmptyArray => self.check(items.next_element::<IgnoredAny>()?.is_none()),
            Rule::Only(word) => {
                let is_it = items.next_element::<String>()?.is_some_and(|item| item == word);
                self.check(is_it && items.next_element::<IgnoredAny>()?.is_none())
            }
            _ => self.check(false),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        match self {
            Rule::Object => {
                while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(())
            }
            Rule::EmptyObject => self.check(members.next_key::<IgnoredAny>()?.is_none()),
            _ => self.check(false),
        }
    }
}
