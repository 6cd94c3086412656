//! Problems of a body, described in terms of JSON, since clients do not know the names of Rust types.

use std::borrow::Cow;
use std::fmt::Display;

use serde::de::{Error, Expected, IgnoredAny, Unexpected};

/// The reason why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyError {
    /// The path to the value at fault, with indexes and keys. `None` until it is known.
    path: Option<String>,
    /// The field that contains the value, for the error's `param`.
    field: String,
    /// A missing or excess field of the value at the path.
    member: Option<String>,
    /// The rest of the sentence after the value's name.
    what: String,
}

/// Why a text is not JSON, in the words of `serde_json` and in plain words.
const REASONS: [(&str, &str); 9] = [
    ("expected value", "a value is missing"),
    ("expected ident", "this word is not JSON"),
    ("expected `:`", "a colon is missing"),
    ("expected `,` or `}`", "a comma or } is missing"),
    ("expected `,` or `]`", "a comma or ] is missing"),
    ("trailing characters", "text follows the end"),
    ("trailing comma", "a comma has nothing after it"),
    ("invalid escape", "a string has an escape that JSON does not know"),
    (
        "control character (\\u0000-\\u001F) found while parsing a string",
        "a string has a control character that is not escaped",
    ),
];

impl BodyError {
    fn new(what: String) -> Self {
        BodyError { path: None, field: String::new(), member: None, what }
    }

    fn of_member(member: &str, what: &str) -> Self {
        BodyError { member: Some(member.into()), ..Self::new(what.into()) }
    }

    /// Creates an error for bytes that are not JSON, or for valid JSON in `field` that no string or number can
    /// represent. `reason` is the deserializer's message.
    pub fn unreadable(bytes: &[u8], field: String, reason: &str) -> Self {
        match serde_json::from_slice::<IgnoredAny>(bytes) {
            Err(error) if error.is_eof() => Self::of_body(" is not JSON: it ends too early".into()),
            Err(error) => {
                let place = format!("line {}, column {}", error.line(), error.column());
                let reason = error.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                let known = REASONS.iter().find(|(words, _)| *words == reason);
                Self::of_body(format!(" is not JSON at {place}: {}", known.map_or(reason, |(_, plain)| plain)))
            }
            Ok(_) => {
                let (reason, place) = reason.split_once(" at line ").unwrap_or((reason, ""));
                let what = match reason {
                    "number out of range" => "a number that is out of range",
                    _ => "an escape (\\u) of a lone surrogate",
                };
                let at = place.split_once(" column ").map(|(line, column)| format!(" at line {line}, column {column}"));
                Self::new(format!(" has {what}{}", at.unwrap_or_default())).at(|| (field.clone(), field))
            }
        }
    }

    /// Creates a problem of the body as a whole.
    pub fn of_body(what: String) -> Self {
        Self::new(what).at(Default::default)
    }

    /// Sets the place, as a path and its field, unless it is already set.
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

    /// Returns the problem of a value that is at `place` in the body.
    pub fn within(self, place: &str) -> Self {
        let within = |path: &str| if path.is_empty() { place.to_owned() } else { format!("{place}.{path}") };
        let (path, field) = (within(self.path.as_deref().unwrap_or_default()), within(&self.field));
        BodyError { path: Some(path), field, ..self }
    }

    /// Returns the field at fault. `None` if the problem concerns the whole body.
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
        Self::of_member(field, " is given twice")
    }
}

/// Translates serde's name for an expected type.
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

/// Describes the value that a client sent. Strings are not repeated, since they may be long.
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
            (r#"{"inner": {"size": 1, "size": 2}}"#, "inner.size is given twice", "inner.size"),
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
    fn invalid_json_is_reported_with_its_position() {
        assert_eq!(problem("{\"whole\": 7").0, "the body is not JSON: it ends too early");
        let trailing = "the body is not JSON at line 3, column 2: text follows the end";
        assert_eq!(problem("{\"whole\": 7}\n\n x").0, trailing);
        let word = "the body is not JSON at line 1, column 20: a value is missing";
        assert_eq!(problem("{\"inner\": {\"size\": NaN}}").0, word);
    }

    #[test]
    fn unrepresentable_values_are_reported_with_their_position() {
        for (json, message, field) in [
            (
                r#"{"flag": true, "texts": ["\ud800"]}"#,
                "texts has an escape (\\u) of a lone surrogate at line 1, column 33",
                "texts",
            ),
            (
                r#"{"anything": {"a": ["\udc00\ud800"]}}"#,
                "anything has an escape (\\u) of a lone surrogate at line 1, column 27",
                "anything",
            ),
            (
                r#"{"texts": [], "ratio": 1e400}"#,
                "ratio has a number that is out of range at line 1, column 28",
                "ratio",
            ),
        ] {
            assert_eq!(problem(json), (message.into(), Some(field.into())), "{json}");
        }
        let problem = parse::<Outer>(b"{\"flag\": true,\n \"texts\": [\"\xc3(\"]}").unwrap_err();
        assert_eq!(problem.to_string(), "the body is not UTF-8: line 2, column 13 has an invalid byte");
    }

    #[test]
    fn nesting_has_a_limit_that_is_named() {
        let nested =
            |levels: usize| format!("{{\"flag\": true,\n \"anything\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
        let (outer, _) = parse::<Outer>(nested(255).as_bytes()).unwrap();
        assert_eq!(outer.anything.to_string(), format!("{}{}", "[".repeat(255), "]".repeat(255)));
        let deep = "the body is nested more than 256 levels deep, from line 2, column 269 on";
        assert_eq!(problem(&nested(256)).0, deep);
        assert_eq!(problem(&nested(100_000)).0, deep);
        let text = format!("{{\"texts\": [\"{}\\\"{}\"]}}", "[".repeat(300), "[".repeat(300));
        assert!(parse::<Outer>(text.as_bytes()).is_ok(), "brackets in strings do not count as nesting");
        let objects = format!("{{\"anything\": {}1{}}}", "{\"a\": ".repeat(250), "}".repeat(250));
        let (outer, _) = parse::<Outer>(objects.as_bytes()).unwrap();
        assert_eq!(format!("{{\"anything\":{}}}", outer.anything), objects.replace(' ', ""));
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
    fn unknown_fields_are_listed() {
        let json = br#"{"flag": true, "flags": [{"a": 1}], "inner": {"size": 1, "x.y": 2}, "anything": {"z": 1}}"#;
        let (outer, unknown) = parse::<Outer>(json).unwrap();
        assert!(outer.flag && outer.inner.is_some_and(|inner| inner.size == 1 && inner.name.is_none()));
        assert!(outer.texts.is_empty() && outer.inners.is_empty() && outer.table.is_empty());
        assert_eq!(unknown.into_iter().collect::<Vec<_>>(), ["flags", "inner.x.y"]);
    }
}
