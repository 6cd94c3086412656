//! What is wrong with a body, said in the words of JSON: no type of ours has a name that a client could know.

use std::borrow::Cow;
use std::fmt::Display;

use serde::de::{Error, Expected, IgnoredAny, Unexpected};

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyError {
    /// The way to what is wrong, with indexes and keys; nothing while that is not known.
    path: Option<String>,
    /// The field in it.
    field: String,
    /// A field that is missing, or too much, in what is at the path.
    member: Option<String>,
    /// What goes on from the name of what is wrong.
    what: String,
}

impl BodyError {
    fn new(what: String) -> Self {
        BodyError { path: None, field: String::new(), member: None, what }
    }

    fn of_member(member: &str, what: &str) -> Self {
        BodyError { member: Some(member.into()), ..Self::new(what.into()) }
    }

    /// The problem that the bytes are not JSON, or that `field` has something which JSON allows and which cannot be
    /// represented.
    pub fn unreadable(bytes: &[u8], field: String) -> Self {
        let what = match serde_json::from_slice::<IgnoredAny>(bytes) {
            Err(error) if error.is_eof() => " is not JSON: it ends too early".into(),
            Err(error) => format!(" is not JSON from line {}, column {} on", error.line(), error.column()),
            Ok(_) => {
                let what = " cannot be read: it is nested too deeply, or has text or numbers that cannot be";
                return Self::new(what.into()).at(|| (field.clone(), field));
            }
        };
        Self::new(what).at(Default::default)
    }

    /// Names the place, by its path and its field, unless it is named already.
    pub fn at(mut self, place: impl FnOnce() -> (String, String)) -> Self {
        if self.path.is_none() {
            let (mut path, mut field) = place();
            if let Some(member) = self.member.take() {
                path = if path.is_empty() { member } else { format!("{path}.{member}") };
                field.clone_from(&path);
            }
            (self.path, self.field) = (Some(path), field);
        }
        self
    }

    /// The field that is at fault, if it is not the body as a whole.
    pub fn field(&self) -> Option<&str> {
        Some(self.field.as_str()).filter(|field| !field.is_empty())
    }
}

impl Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.as_deref().filter(|path| !path.is_empty());
        write!(f, "{}{}", path.unwrap_or("the body"), self.what)
    }
}

impl std::error::Error for BodyError {}

impl Error for BodyError {
    fn custom<T: Display>(what: T) -> Self {
        Self::new(format!(": {what}"))
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        let wanted_words = words(&wanted.to_string()).into_owned();
        let is_huge = match found {
            Unexpected::Unsigned(value) => i64::try_from(value).is_err(),
            Unexpected::Float(value) => value.fract() == 0.0 && value.abs() >= i64::MAX as f64,
            _ => false,
        };
        if is_huge && wanted_words.starts_with("an integer") {
            return Self::new(format!(" is out of range: {}", named(found)));
        }
        Self::new(format!(" must be {wanted_words}, not {}", named(found)))
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::invalid_type(found, wanted)
    }

    fn invalid_length(_: usize, wanted: &dyn Expected) -> Self {
        Self::new(format!(" must be {}", words(&wanted.to_string())))
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
        Self::new(format!(" must be {}, not {found:?}", known.join(" or ")))
    }

    fn unknown_field(field: &str, _: &'static [&'static str]) -> Self {
        Self::of_member(field, " is not supported")
    }

    fn missing_field(field: &'static str) -> Self {
        Self::of_member(field, " is missing")
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::of_member(field, " is there twice")
    }
}

/// What serde calls a type that it wants.
fn words(wanted: &str) -> Cow<'_, str> {
    Cow::Borrowed(match wanted {
        "a boolean" => "true or false",
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "u128" | "usize" => "an integer that is not negative",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        "unit" => "null",
        _ if wanted.starts_with("a tuple") || wanted.starts_with("tuple ") => "an array",
        _ if wanted.starts_with("struct ") || wanted.contains("enum ") => "an object",
        _ => return wanted.replace("a sequence", "an array").replace("a map", "an object").into(),
    })
}

/// What a client calls what it sent. Texts are not repeated, since they may be long.
fn named(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => format!("{value:?}"),
        Unexpected::Unit | Unexpected::Option => "null".into(),
        Unexpected::Seq => "an array".into(),
        Unexpected::Map => "an object".into(),
        Unexpected::Other(words) => words.into(),
        _ => "a string".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::super::parse;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Outer {
        count: Option<u32>,
        whole: usize,
        signed: i64,
        ratio: Option<f32>,
        flag: bool,
        texts: Vec<String>,
        inner: Option<Inner>,
        inners: Vec<Inner>,
        table: BTreeMap<String, f32>,
        pair: (u8, u8),
        colour: Option<Colour>,
        anything: serde_json::Value,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        name: Option<String>,
        size: u32,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Colour {
        Red,
        Green,
    }

    fn problem(json: &str) -> (String, Option<String>) {
        let problem = parse::<Outer>(json.as_bytes()).unwrap_err();
        (problem.to_string(), problem.field().map(Into::into))
    }

    #[test]
    fn each_problem_names_its_field() {
        for (json, message, field) in [
            (r#"{"count": "7"}"#, "count must be an integer from 0 to 4294967295, not a string", "count"),
            (r#"{"count": 1.5}"#, "count must be an integer from 0 to 4294967295, not 1.5", "count"),
            (r#"{"whole": -1}"#, "whole must be an integer that is not negative, not -1", "whole"),
            (r#"{"whole": null}"#, "whole must be an integer that is not negative, not null", "whole"),
            (r#"{"signed": 1e300}"#, "signed is out of range: 1e300", "signed"),
            (r#"{"ratio": []}"#, "ratio must be a number, not an array", "ratio"),
            (r#"{"flag": 1}"#, "flag must be true or false, not 1", "flag"),
            (r#"{"texts": "a"}"#, "texts must be an array, not a string", "texts"),
            (r#"{"texts": ["a", 7]}"#, "texts[1] must be a string, not 7", "texts"),
            (r#"{"inner": 3}"#, "inner must be an object, not 3", "inner"),
            (r#"{"inner": ["a", 3]}"#, "inner must be an object, not an array", "inner"),
            (r#"{"inner": {}}"#, "inner.size is missing", "inner.size"),
            (
                r#"{"inner": {"size": {}}}"#,
                "inner.size must be an integer from 0 to 4294967295, not an object",
                "inner.size",
            ),
            (r#"{"inner": {"size": 1, "size": 2}}"#, "inner.size is there twice", "inner.size"),
            (
                r#"{"inners": [{"size": 1}, {"size": 1, "name": 2}]}"#,
                "inners[1].name must be a string, not 2",
                "inners[1].name",
            ),
            (r#"{"inners": [{"size": 1}, []]}"#, "inners[1] must be an object, not an array", "inners"),
            (r#"{"table": {"7": "x"}}"#, "table.7 must be a number, not a string", "table"),
            (r#"{"table": [1]}"#, "table must be an object, not an array", "table"),
            (r#"{"pair": [1]}"#, "pair must be an array", "pair"),
            (r#"{"colour": "blue"}"#, "colour must be \"red\" or \"green\", not \"blue\"", "colour"),
            (r#"{"colour": {"red": null}}"#, "colour must be a string, not an object", "colour"),
        ] {
            assert_eq!(problem(json), (message.into(), Some(field.into())), "{json}");
        }
        assert_eq!(problem("[]"), ("the body must be an object, not an array".into(), None));
    }

    #[test]
    fn what_is_not_json_is_named_by_its_place() {
        assert_eq!(problem("{\"whole\": 7").0, "the body is not JSON: it ends too early");
        assert_eq!(problem("{\"whole\": 7}\n\n x").0, "the body is not JSON from line 3, column 2 on");
        assert_eq!(problem("{\"inner\": {\"size\": NaN}}").0, "the body is not JSON from line 1, column 20 on");
        let deep = format!("{{\"anything\": {}{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(problem(&deep).0.contains("nested too deeply"));
        for json in [r#"{"flag": true, "texts": ["\ud800"]}"#, r#"{"texts": [], "ratio": 1e400}"#] {
            let (message, field) = problem(json);
            assert!(field.is_some_and(|field| message.starts_with(&field)), "{message}");
        }
    }

    #[test]
    fn whole_numbers_are_integers() {
        let (outer, _) = parse::<Outer>(br#"{"count": 4.0, "whole": 3e2, "signed": -5.0, "ratio": 7}"#).unwrap();
        assert_eq!((outer.count, outer.whole, outer.signed, outer.ratio), (Some(4), 300, -5, Some(7.0)));
        let (outer, _) = parse::<Outer>(br#"{"anything": {"x": 4.0}, "colour": "red", "pair": [1.0, 2]}"#).unwrap();
        assert_eq!((outer.anything, outer.pair), (serde_json::json!({"x": 4.0}), (1, 2)));
        assert!(matches!(outer.colour, Some(Colour::Red)));
        assert!(matches!(parse::<Colour>(br#""green""#), Ok((Colour::Green, _))));
    }

    #[test]
    fn fields_that_nobody_knows_are_listed() {
        let json = br#"{"flag": true, "flags": [{"a": 1}], "inner": {"size": 1, "x.y": 2}, "anything": {"z": 1}}"#;
        let (outer, unknown) = parse::<Outer>(json).unwrap();
        assert!(outer.flag && outer.inner.is_some_and(|inner| inner.size == 1 && inner.name.is_none()));
        assert!(outer.texts.is_empty() && outer.inners.is_empty() && outer.table.is_empty());
        assert_eq!(unknown.into_iter().collect::<Vec<_>>(), ["flags", "inner.x.y"]);
    }
}
