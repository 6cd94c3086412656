//! Parses JSON into structs, with errors in the sender's terms: the field, the expected value and the actual value.
//!
//! It differs from serde in two points: 4.0 is an integer, and an array is not an object.

mod nesting;
mod problem;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;

pub use problem::BodyError;

/// Levels of nesting that one deserializer reads, below `serde_json`'s limit of 128. Another deserializer reads the
/// next levels.
const LEVELS: usize = 100;
/// The name by which `serde_json` recognises [`RawValue`].
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Parses a value. Also returns the paths of all fields in the JSON that the value's type does not have.
///
/// # Errors
/// The first problem in the JSON.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, BTreeSet<String>), BodyError> {
    nesting::check(bytes)?;
    let reading = Reading::default();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(Json { inner: &mut json, at: Place { path: &Path::Root, depth: 0, reading: &reading } });
    match value {
        Ok(value) if json.end().is_ok() => Ok((value, reading.unknown.take())),
        Err(problem) if reading.unreadable.borrow().is_none() => Err(problem),
        _ => {
            let (field, reason) = reading.unreadable.take().unwrap_or_default();
            Err(BodyError::unreadable(bytes, field, &reason))
        }
    }
}

/// State shared by all levels while a body is read.
#[derive(Default)]
struct Reading {
    /// A problem, stored while it passes through a deserializer with its own error type.
    problem: RefCell<Option<BodyError>>,
    unknown: RefCell<BTreeSet<String>>,
    /// The field at which the deserializer failed, and its reason: the bytes are not JSON, or a string or number cannot
    /// be represented.
    unreadable: RefCell<Option<(String, String)>>,
}

/// The path from the root to a value.
enum Path<'a> {
    Root,
    /// A field of a struct.
    Field(&'a Path<'a>, &'a str),
    /// An entry of a map.
    Entry(&'a Path<'a>, &'a str),
    /// An item of an array.
    Item(&'a Path<'a>, usize),
}

impl std::fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, key) | Path::Entry(Path::Root, key) => f.write_str(key),
            Path::Field(outer, key) | Path::Entry(outer, key) => write!(f, "{outer}.{key}"),
            Path::Item(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

impl Path<'_> {
    /// Returns the field that contains the value. Items and entries are data, not fields.
    fn field(&self) -> &Self {
        match self {
            Path::Root | Path::Field(..) => self,
            Path::Entry(outer, _) | Path::Item(outer, _) => outer.field(),
        }
    }
}

/// The position of a value in the body.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path<'a>,
    /// Number of arrays and objects around the value.
    depth: usize,
    reading: &'a Reading,
}

impl Place<'_> {
    /// Converts an error of the inner deserializer. Returns the problem that was stored for it, or records the error as
    /// unreadable JSON.
    fn problem<E: Error>(self, error: E) -> BodyError {
        self.reading.problem.take().unwrap_or_else(|| {
            // Records only the innermost place, because the enclosing values report the same error later.
            self.reading.unreadable.borrow_mut().get_or_insert_with(|| {
                let reason = error.to_string();
                // A deserializer of inner levels counts lines from its own start, so its position is dropped.
                let has_place = self.depth < LEVELS;
                let reason =
                    if has_place { reason.as_str() } else { reason.split(" at line ").next().unwrap_or_default() };
                (self.path.field().to_string(), reason.to_owned())
            });
            BodyError::custom("this is not JSON")
        })
    }

    /// Returns the place of a member or an item.
    fn inner<'b>(&'b self, path: &'b Path<'b>) -> Place<'b> {
        Place { path, depth: self.depth + 1, reading: self.reading }
    }

    /// Adds this place to a problem that was found here.
    fn found(self, problem: BodyError) -> BodyError {
        problem.at(|| (self.path.to_string(), self.path.field().to_string()))
    }

    /// Passes a result through the deserializer. An error is stored, because the deserializer's error type cannot carry
    /// it.
    fn pass<T, E: Error>(self, result: Result<T, BodyError>) -> Result<T, E> {
        result.map_err(|problem| {
            self.reading.problem.replace(Some(self.found(problem)));
            E::custom("")
        })
    }
}

/// The kind of value that a type expects.
#[derive(Clone, Copy)]
enum Kind {
    Integer,
    /// An object with these fields.
    Object(&'static [&'static str]),
    Other,
}

/// A value to read.
struct Json<'a, D> {
    inner: D,
    at: Place<'a>,
}

impl<'a, 'de, D: Deserializer<'de>> Json<'a, D> {
    fn read<V: Visitor<'de>>(self, kind: Kind, visitor: V) -> Result<V::Value, BodyError> {
        let at = self.at;
        if at.depth > 0 && at.depth.is_multiple_of(LEVELS) {
            let raw = <&RawValue>::deserialize(self.inner).map_err(|e| at.problem(e))?;
            let mut json = serde_json::Deserializer::from_str(raw.get());
            return json.deserialize_any(Reader { visitor, kind, at }).map_err(|e| at.problem(e));
        }
        self.inner.deserialize_any(Reader { visitor, kind, at }).map_err(|e| at.problem(e))
    }
}

macro_rules! integers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
            self.read(Kind::Integer, visitor)
        })*
    };
}

impl<'a, 'de, D: Deserializer<'de>> Deserializer<'de> for Json<'a, D> {
    type Error = BodyError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        self.read(Kind::Other, visitor)
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        let at = self.at;
        self.inner.deserialize_option(Reader { visitor, kind: Kind::Other, at }).map_err(|e| at.problem(e))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        self.read(Kind::Object(fields), visitor)
    }

    /// Reads a unit variant by its name. No request field has variants with contents.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        let at = self.at;
        let word: String = serde::Deserialize::deserialize(self)?;
        visitor.visit_enum(word.into_deserializer()).map_err(|problem| at.found(problem))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, BodyError> {
        if name == RAW_VALUE {
            return self.inner.deserialize_newtype_struct(name, visitor).map_err(|e| self.at.problem(e));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, BodyError> {
        self.inner.deserialize_ignored_any(visitor).map_err(|e| self.at.problem(e))
    }

    forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map identifier
    }
}

/// Passes a value to `visitor`.
struct Reader<'a, V> {
    visitor: V,
    kind: Kind,
    at: Place<'a>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Reader<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        self.at.pass(self.visitor.visit_bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        self.at.pass(self.visitor.visit_u64(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        self.at.pass(self.visitor.visit_i64(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        self.at.pass(match (self.kind, integer(value)) {
            (Kind::Integer, Some(value)) => match u64::try_from(value) {
                Ok(value) => self.visitor.visit_u64(value),
                Err(_) => self.visitor.visit_i64(value),
            },
            _ => self.visitor.visit_f64(value),
        })
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        self.at.pass(self.visitor.visit_str(value))
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.at.pass(self.visitor.visit_unit())
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.at.pass(self.visitor.visit_none())
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.at.pass(self.visitor.visit_some(Json { inner, at: self.at }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.at.pass(match self.kind {
            Kind::Object(_) => Err(BodyError::invalid_type(serde::de::Unexpected::Seq, &"an object")),
            _ => self.visitor.visit_seq(Items { inner, next: 0, at: self.at }),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let fields = match self.kind {
            Kind::Object(fields) => Some(fields),
            _ => None,
        };
        self.at.pass(self.visitor.visit_map(Members { inner, fields, key: String::new(), at: self.at }))
    }
}

/// Returns the integer equal to `value`, if there is one.
pub fn integer(value: f64) -> Option<i64> {
    // 2^63 is the first float above the range.
    let fits = value.fract() == 0.0 && value >= i64::MIN as f64 && value < i64::MAX as f64;
    fits.then_some(value as i64)
}

/// The items of an array.
struct Items<'a, A> {
    inner: A,
    next: usize,
    at: Place<'a>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<'_, A> {
    type Error = BodyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, BodyError> {
        let path = Path::Item(self.at.path, self.next);
        self.next += 1;
        let at = self.at.inner(&path);
        self.inner.next_element_seed(Seed { seed, at }).map_err(|e| self.at.problem(e))
    }
}

/// The members of an object.
struct Members<'a, A> {
    inner: A,
    /// The fields of the struct. `None` for a map.
    fields: Option<&'static [&'static str]>,
    /// The key read last.
    key: String,
    at: Place<'a>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<'_, A> {
    type Error = BodyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, BodyError> {
        let Some(key) = self.inner.next_key().map_err(|e| self.at.problem(e))? else { return Ok(None) };
        self.key = key;
        if self.fields.is_some_and(|fields| !fields.contains(&self.key.as_str())) {
            let path = Path::Field(self.at.path, &self.key);
            self.at.reading.unknown.borrow_mut().insert(path.to_string());
        }
        seed.deserialize(self.key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, BodyError> {
        let path = match self.fields {
            Some(_) => Path::Field(self.at.path, &self.key),
            None => Path::Entry(self.at.path, &self.key),
        };
        let at = self.at.inner(&path);
        self.inner.next_value_seed(Seed { seed, at }).map_err(|e| self.at.problem(e))
    }
}

/// Reads a value and records its place.
struct Seed<'a, T> {
    seed: T,
    at: Place<'a>,
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.at.pass(self.seed.deserialize(Json { inner, at: self.at }))
    }
}
