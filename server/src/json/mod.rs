//! JSON into structs, with errors in the words of those who send it: which field, what it must be, and what it is.
//!
//! Two things are as in JSON and not as serde has them: 4.0 is an integer, and an array is no object.

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

/// Levels of nesting that one deserializer reads, below `serde_json`'s own limit of 128. A new one reads the next levels.
const LEVELS: usize = 100;
/// The name by which `serde_json` recognises [`RawValue`].
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// A value, and the paths of the fields in the JSON that its type does not have.
///
/// # Errors
/// The first thing that is wrong.
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

/// What is known of the whole while it is read.
#[derive(Default)]
struct Reading {
    /// What is wrong, on its way through a deserializer that has errors of its own.
    problem: RefCell<Option<BodyError>>,
    unknown: RefCell<BTreeSet<String>>,
    /// The field in which the deserializer found something wrong, and its reason: this is not JSON, or no string or number
    /// can represent it.
    unreadable: RefCell<Option<(String, String)>>,
}

/// The way from the whole to a value.
enum Path<'a> {
    Root,
    /// Of an object with fields.
    Field(&'a Path<'a>, &'a str),
    /// Of an object with any keys.
    Entry(&'a Path<'a>, &'a str),
    /// Of an array.
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
    /// The field that the value is in: items and entries are data.
    fn field(&self) -> &Self {
        match self {
            Path::Root | Path::Field(..) => self,
            Path::Entry(outer, _) | Path::Item(outer, _) => outer.field(),
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path<'a>,
    /// Arrays and objects around the value.
    depth: usize,
    reading: &'a Reading,
}

impl Place<'_> {
    /// What the deserializer's error is about.
    fn problem<E: Error>(self, error: E) -> BodyError {
        self.reading.problem.take().unwrap_or_else(|| {
            // What is around the place says so too, later.
            self.reading.unreadable.borrow_mut().get_or_insert_with(|| {
                let reason = error.to_string();
                // A deserializer of inner levels counts lines from its own beginning.
                let has_place = self.depth < LEVELS;
                let reason =
                    if has_place { reason.as_str() } else { reason.split(" at line ").next().unwrap_or_default() };
                (self.path.field().to_string(), reason.to_owned())
            });
            BodyError::custom("this is not JSON")
        })
    }

    /// The place of a member or an item.
    fn inner<'b>(&'b self, path: &'b Path<'b>) -> Place<'b> {
        Place { path, depth: self.depth + 1, reading: self.reading }
    }

    /// Names the place in a problem that was found at it.
    fn found(self, problem: BodyError) -> BodyError {
        problem.at(|| (self.path.to_string(), self.path.field().to_string()))
    }

    /// Passes a result on through the deserializer.
    fn pass<T, E: Error>(self, result: Result<T, BodyError>) -> Result<T, E> {
        result.map_err(|problem| {
            self.reading.problem.replace(Some(self.found(problem)));
            E::custom("")
        })
    }
}

/// What a value is read as.
#[derive(Clone, Copy)]
enum Kind {
    Integer,
    /// An object with these fields.
    Object(&'static [&'static str]),
    Other,
}

/// A value that is to be read.
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

    /// A variant without contents, by its name: no field of a body has others.
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

/// Takes a value in for `visitor`.
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

/// The integer that a number is.
pub fn integer(value: f64) -> Option<i64> {
    // 2^63 is the first that is too great.
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
    /// The fields there are, if they are given.
    fields: Option<&'static [&'static str]>,
    /// The key that was read last.
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

/// Reads a value at its place.
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
