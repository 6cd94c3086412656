//! Options for rendering a prompt.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A local date and time, without a time zone.
pub type Time = chrono::NaiveDateTime;

/// Options for rendering a prompt.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// End the prompt with the start of an answer.
    pub add_generation_prompt: bool,
    /// End the prompt within the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// The functions that the model may call, each with a JSON schema.
    pub tools: Option<Value>,
    /// Documents to answer from.
    pub documents: Option<Value>,
    /// Further variables for the template.
    pub arguments: Arguments,
    /// The time that the template sees. `None` means the system's local time.
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

/// Names and values, such as the fields of a JSON object in order.
#[derive(Clone, Debug, Default)]
pub struct Arguments(Vec<(String, Value)>);

impl Arguments {
    /// Adds a name and its value.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.push((name.into(), value.into()));
    }

    /// Returns the names in order.
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
