//! The `prompt` of a completion or the `input` of embeddings.

use std::fmt;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

use crate::app::App;
use crate::error::{ApiError, check};
use crate::json::integer;

/// One prompt or several, as texts or as tokens.
#[derive(Debug)]
pub enum PromptField {
    /// One prompt as a text.
    Text(String),
    /// One prompt as tokens.
    Tokens(Vec<u32>),
    /// Several prompts as texts.
    Texts(Vec<String>),
    /// Several prompts as tokens.
    TokenLists(Vec<Vec<u32>>),
}

/// The first item of an array, which determines the type of the others.
enum Item {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl PromptField {
    /// Returns the texts and tokens of all prompts, which come from `field`. If `special`, texts get the special tokens
    /// that the model expects around them.
    ///
    /// # Errors
    /// 400 if there are no prompts or too many, a prompt is empty, or a token id is outside the vocabulary.
    pub async fn encode(self, app: &App, field: &str, special: bool) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
        let (texts, lists) = match self {
            PromptField::Text(text) => (vec![text], Vec::new()),
            PromptField::Texts(texts) => (texts, Vec::new()),
            PromptField::Tokens(tokens) => (Vec::new(), vec![tokens]),
            PromptField::TokenLists(lists) => (Vec::new(), lists),
        };
        let (count, most) = (texts.len() + lists.len(), app.options.limits.max_queue);
        check((1..=most).contains(&count), field, || format!("there must be between 1 and {most} prompts"))?;
        let context = Some(app.config.max_positions);
        let mut prompts = app.texts.encode(field, texts, special, context).await?;
        prompts.extend(app.texts.decode(field, lists, true, context).await?);
        check(prompts.iter().all(|p| !p.1.is_empty()), field, || "a prompt must have at least one token".into())?;
        Ok(prompts)
    }
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = PromptField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, an array of strings, an array of token ids or an array of such arrays")
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<PromptField, E> {
                Ok(PromptField::Text(value.into()))
            }

            fn visit_string<E: Error>(self, value: String) -> Result<PromptField, E> {
                Ok(PromptField::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptField, A::Error> {
                Ok(match items.next_element()? {
                    None => PromptField::Texts(Vec::new()),
                    Some(Item::Text(first)) => PromptField::Texts(all(first, items)?),
                    Some(Item::Token(first)) => PromptField::Tokens(all(first, items)?),
                    Some(Item::Tokens(first)) => PromptField::TokenLists(all(first, items)?),
                })
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

/// Reads the rest of an array after its first item.
fn all<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut items: A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(item) = items.next_element()? {
        all.push(item);
    }
    Ok(all)
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id (an integer from 0 to 4294967295) or an array of token ids")
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Item, E> {
                Ok(Item::Text(value.into()))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Item, E> {
                let id = u32::try_from(value).map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))?;
                Ok(Item::Token(id))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Item, E> {
                let id = integer(value).and_then(|id| u32::try_from(id).ok());
                id.map(Item::Token).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Item, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(items)).map(Item::Tokens)
            }
        }

        deserializer.deserialize_any(Forms)
    }
}
