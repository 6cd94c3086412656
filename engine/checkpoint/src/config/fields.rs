//! Typed access to the members of a JSON object. A null member counts as absent, as in Hugging Face's classes.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Larger than any configuration. A longer file must be something else.
const MAX_TEXT: usize = 16 << 20;

/// Parses `text`, the contents of `file`, as an object.
pub(super) fn parse(text: &[u8], file: &str) -> Result<Map<String, Value>> {
    if text.len() > MAX_TEXT {
        return Err(Error::Config(format!("{file} has {} bytes, too many for a configuration", text.len())));
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::Config(format!("{file} is not a JSON object"))),
        Err(error) => Err(Error::Config(format!("{file} is not JSON: {error}"))),
    }
}

/// Refuses zero and values above `most`.
pub(super) fn in_range(name: &str, value: usize, most: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::Config(format!("{name} is zero")));
    }
    if value > most {
        return Err(Error::Config(format!("{name} ({value}) is above {most}, the largest this engine accepts")));
    }
    Ok(())
}

/// The members of an object.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub fn new(object: &'a Map<String, Value>) -> Self {
        Fields(object)
    }

    /// Whether the member exists, even if it is null.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the member exists and is not null, false or empty.
    pub fn has_value(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| match value {
            Value::Bool(value) => *value,
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => true,
        })
    }

    /// Whether the object has no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all members with their names. Each must be an object.
    pub fn objects(&self) -> Result<Vec<(&'a str, Fields<'a>)>> {
        let one = |(name, value): (&'a String, &'a Value)| match value.as_object() {
            Some(object) => Ok((name.as_str(), Fields(object))),
            None => Err(Error::Config(format!("{} must be an object, but is {}", shown_name(name), shown(value)))),
        };
        self.0.iter().map(one).collect()
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, name: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(Error::Config(format!("{name} must be {what}, but is {}", shown(value)))),
            },
        }
    }

    pub fn usize(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number that is not negative", whole)
    }

    pub fn usize_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.usize(name)?.unwrap_or(default))
    }

    /// Returns the value of `name`, else of its alias `other`, else the default.
    pub fn either_usize(&self, name: &str, other: &str, default: usize) -> Result<usize> {
        Ok(self.usize(name)?.or(self.usize(other)?).unwrap_or(default))
    }

    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// Returns a number, which must be above zero.
    pub fn positive_or(&self, name: &str, default: f64) -> Result<f64> {
        match self.float(name)? {
            None => Ok(default),
            Some(number) if number > 0.0 => Ok(number),
            Some(number) => Err(Error::Config(format!("{name} must be above zero, but is {number}"))),
        }
    }

    /// Returns the cap of a softcap. Null means none. If the member is absent, returns the default of the class.
    pub fn softcap(&self, name: &str, default: Option<f64>) -> Result<Option<f32>> {
        if !self.has(name) {
            return Ok(default.map(|cap| cap as f32));
        }
        let cap = self.get(name).map(|_| self.positive_or(name, 1.0)).transpose()?;
        Ok(cap.map(|cap| cap as f32))
    }

    /// Returns a member that is a string or a flag. A flag that is false counts as absent.
    pub fn text_or_flag(&self, name: &str) -> Result<Option<String>> {
        let text = self.typed(name, "true, false or a string", |value| match value {
            Value::Bool(flag) => Some(flag.to_string()),
            text => text.as_str().map(str::to_owned),
        })?;
        Ok(text.filter(|text| text != "false"))
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub fn bool_or(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.bool(name)?.unwrap_or(default))
    }

    /// Whether a pair of bounds is absent or allows every number above zero. transformers 5 writes infinity as an object.
    pub fn is_unlimited(&self, name: &str) -> Result<bool> {
        let unlimited = self.typed(name, "a list of two numbers", |value| match value.as_array()?.as_slice() {
            [least, most] => Some(least.as_f64()? <= 0.0 && !most.is_number()),
            _ => None,
        })?;
        Ok(unlimited.unwrap_or(true))
    }

    pub fn string(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        self.typed(name, "an object", |value| value.as_object().map(Fields))
    }

    /// Returns the first string of a list of strings, or `None` if the list is empty.
    pub fn first_string(&self, name: &str) -> Result<Option<String>> {
        Ok(self.strings(name)?.and_then(|all| all.into_iter().next()))
    }

    /// Returns a list of strings.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<String>>> {
        self.typed(name, "a list of strings", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    /// Returns a list of numbers, which must be above zero.
    pub fn positives(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.typed(name, "a list of numbers above zero", |value| {
            let number = |item: &Value| item.as_f64().map(|x| x as f32).filter(|x| *x > 0.0 && x.is_finite());
            value.as_array()?.iter().map(number).collect()
        })
    }

    /// Returns a list of non-negative whole numbers.
    pub fn usizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        self.typed(name, "a list of whole numbers", |value| value.as_array()?.iter().map(whole).collect())
    }

    /// Returns a single token id.
    fn token(&self, name: &str) -> Result<Option<u32>> {
        self.typed(name, "a token id", token)
    }

    /// Returns the BOS token. Null means no BOS token. If the member is absent, returns the default of the model's
    /// class.
    pub fn bos(&self, default: Option<u32>) -> Result<Option<u32>> {
        if self.has("bos_token_id") { self.token("bos_token_id") } else { Ok(default) }
    }

    /// Returns the EOS tokens. Null means no EOS tokens, as for [`Fields::bos`].
    pub fn eos(&self, default: &[u32]) -> Result<Vec<u32>> {
        let default = if self.has("eos_token_id") { &[] } else { default };
        Ok(self.tokens("eos_token_id")?.unwrap_or_else(|| default.to_vec()))
    }

    /// Returns token ids, given as a number or a list of numbers.
    pub fn tokens(&self, name: &str) -> Result<Option<Vec<u32>>> {
        self.typed(name, "a token id or a list of token ids", |value| match value {
            Value::Array(items) => items.iter().map(token).collect(),
            single => token(single).map(|id| vec![id]),
        })
    }
}

fn whole(value: &Value) -> Option<usize> {
    // Some tools write sizes as 4096.0.
    let number = value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        ((0.0..9e15).contains(&float) && float.fract() == 0.0).then_some(float as u64)
    })?;
    usize::try_from(number).ok()
}

fn token(value: &Value) -> Option<u32> {
    u32::try_from(whole(value)?).ok()
}

/// Shortens a name for an error message.
fn shown_name(name: &str) -> String {
    name.chars().take(60).collect()
}

/// Shortens a value for an error message.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(_) => return "a list".into(),
        Value::Object(_) => return "an object".into(),
        scalar => scalar.to_string(),
    };
    if text.len() <= 60 { text } else { format!("{}...", text.chars().take(50).collect::<String>()) }
}
