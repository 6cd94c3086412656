//! The metadata of a GGUF file: values by name.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// A metadata value of a kind that this program uses, or a placeholder.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    /// Whole numbers, or 0 and 1 for false and true.
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    /// A value of another kind.
    Other,
}

/// All values of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Metadata(pub HashMap<String, Value>);

impl Metadata {
    fn typed<'a, T>(&'a self, name: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(Error::Config(format!("the file's metadata should have {what} as {name}"))),
            },
        }
    }

    pub fn integer(&self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a whole number that is not negative", |value| match value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    /// Returns a number that is the same for all layers. Some files write it once per layer, with zeros for layers that
    /// keep a state.
    pub fn integer_of_layers(&self, name: &str) -> Result<Option<u64>> {
        match self.0.get(name) {
            Some(Value::Integers(all)) => {
                let mut some = all.iter().filter(|number| **number != 0);
                let first = some.next().or(all.first());
                match some.all(|number| Some(number) == first) {
                    true => Ok(first.and_then(|number| u64::try_from(*number).ok())),
                    false => Err(Error::Unsupported(format!("{name} differs by the layer"))),
                }
            }
            _ => self.integer(name),
        }
    }

    /// Returns a number for each of `layers` layers. A file may write one number for all of them.
    pub fn integers_of_layers(&self, name: &str, layers: usize) -> Result<Option<Vec<u64>>> {
        let Some(Value::Integers(all)) = self.0.get(name) else {
            return Ok(self.integer(name)?.map(|one| vec![one; layers]));
        };
        let numbers: Option<Vec<u64>> = all.iter().map(|number| u64::try_from(*number).ok()).collect();
        match numbers.filter(|numbers| numbers.len() == layers) {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(Error::Config(format!("{name} should have a number for each of the {layers} layers"))),
        }
    }

    /// Returns which of `layers` layers have a window. The file may list them, or contain the period of the layers
    /// without a window. `default` is the period if it contains neither.
    pub fn windowed_layers(&self, name: &str, layers: usize, default: u64) -> Result<Vec<bool>> {
        if let Some(Value::Integers(_)) = self.0.get(name) {
            let listed = self.integers_of_layers(name, layers)?.unwrap_or_default();
            return Ok(listed.into_iter().map(|flag| flag != 0).collect());
        }
        let period = self.integer(name)?.unwrap_or(default);
        Ok((0..layers as u64).map(|layer| period == 0 || layer % period < period - 1).collect())
    }

    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", |value| match value {
            Value::Float(number) => Some(*number).filter(|number| number.is_finite()),
            Value::Integer(number) => Some(*number as f64),
            _ => None,
        })
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", |value| match value {
            Value::Bool(bool) => Some(*bool),
            _ => None,
        })
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        self.typed(name, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub fn texts(&self, name: &str) -> Result<Option<&[String]>> {
        self.typed(name, "a list of strings", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    pub fn integers(&self, name: &str) -> Result<Option<&[i64]>> {
        self.typed(name, "a list of whole numbers", |value| match value {
            Value::Integers(numbers) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    pub fn floats(&self, name: &str) -> Result<Option<&[f32]>> {
        self.typed(name, "a list of numbers", |value| match value {
            Value::Floats(numbers) => Some(numbers.as_slice()),
            _ => None,
        })
    }
}
