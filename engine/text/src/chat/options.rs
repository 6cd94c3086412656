//! How a conversation is made a prompt.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A day and a time on it, as the clock on the wall shows them.
pub type Time = chrono::NaiveDateTime;

/// How a conversation is made a prompt.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// End with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// End within the last message, which is to be continued.
    pub continue_final_message: bool,
    /// Functions that may be called, each a JSON schema.
    pub tools: Option<Value>,
    /// Texts to answer from.
    pub documents: Option<Value>,
    /// What else the template is told.
    pub arguments: Arguments,
    /// The time that the template may ask for; if `None`, it is asked of the system, with its time zone.
    pub now: Option<Time>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        RenderOptions {
            add_generation_prompt: true,
            continue_final_message: false,
            tools: None,
            documents: None,
            arguments: Arguments::default(),
            now: None,
        }
    }
}

/// Names and values: the fields of a JSON object, in their order.
#[derive(Clone, Debug, Default)]
pub struct Arguments(Vec<(String, Value)>);

impl Arguments {
    /// Adds one.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.push((name.into(), value.into()));
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

impl IntoIterator for Arguments {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Arguments;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Arguments, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Arguments(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}
