//! Counts the parts of JSON schemas.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::super::schema as rewriter;
use super::levels::{levels, targets};
use super::regex;
use super::tally::{MAX_LEVELS, Tally};

/// Maximum regular expressions that one text must match. The library compiles their product.
const MAX_PATTERNS: usize = 6;
/// Maximum of `multipleOf`, with its digits read as a whole number. The lexer has one state per remainder.
const MAX_MULTIPLE: u64 = 100_000;
/// Maximum of `multipleOf` in a light grammar, read the same way.
const LIGHT_MULTIPLE: u64 = 1000;
/// Maximum decimal places of `multipleOf`.
const MAX_PLACES: usize = 6;
/// Maximum branches of `oneOf` in a light grammar. Every pair of branches is compared.
const LIGHT_BRANCHES: usize = 32;
/// Keywords that do not restrict values.
const ANNOTATIONS: &[&str] = &[
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
    "x-guidance",
];
/// Keywords whose subschemas apply to the same value as the schema around them.
const IN_PLACE: &[&str] = &["allOf", "anyOf", "oneOf", "$ref"];

/// Counts the parts of a schema. Ignores invalid parts, which the library reports.
pub(super) fn count(root: &Value, tally: &mut Tally) -> Result<(), String> {
    if levels(root)? > MAX_LEVELS {
        return Err(format!("a schema may have {MAX_LEVELS} levels at most, with all references followed"));
    }
    let patterns = HashMap::new();
    let mut counter = Counter {
        root,
        tally,
        patterns,
        multiple: 1,
        scaled: 1,
        largest: 0,
        places: 0,
        has_intersections: false,
        path: Vec::new(),
    };
    if let Err(why) = counter.value(root) {
        counter.path.reverse();
        return Err(format!("{}: {why}", rewriter::place(&counter.path)));
    }
    let (multiple, has_intersections, product) = (counter.multiple, counter.has_intersections, counter.product());
    if has_intersections && multiple > MAX_MULTIPLE {
        return Err(format!("a number cannot be required to be a multiple of {multiple}; {MAX_MULTIPLE} is the most"));
    }
    if has_intersections && product > u32::MAX.into() {
        return Err("the values of multipleOf are too large, or have too many decimal places, to be combined".into());
    }
    Ok(())
}

struct Counter<'a, 'b> {
    root: &'a Value,
    tally: &'b mut Tally,
    /// Number of regular expressions that a value's text must match, by the value's address. `None` while it is being
    /// counted.
    patterns: HashMap<*const Value, Option<usize>>,
    /// Least common multiple of every `multipleOf`.
    multiple: u64,
    /// The same in units of the smallest decimal place that is allowed.
    scaled: u64,
    /// Largest `multipleOf` in these units.
    largest: u64,
    /// Most decimal places of a `multipleOf`.
    places: usize,
    has_intersections: bool,
    /// Keys from the refused value up to the root.
    path: Vec<String>,
}

impl<'a> Counter<'a, '_> {
    fn value(&mut self, value: &'a Value) -> Result<(), String> {
        match value {
            Value::String(text) => self.tally.bytes += text.len() + 3,
            Value::Array(items) => {
                self.tally.bytes += 2;
                items.iter().enumerate().try_for_each(|(at, item)| self.at(&at, item))?;
            }
            Value::Object(members) => {
                self.object(members)?;
                let patterns = self.patterns(value);
                if patterns > MAX_PATTERNS {
                    return Err(format!("a text may have to match {MAX_PATTERNS} patterns and formats at most"));
                }
                self.tally.is_heavy |= patterns > 1;
                for (name, member) in members {
                    self.tally.bytes += name.len() + 4;
                    self.at(name, member)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.tally.bytes += 8,
        }
        Ok(())
    }

    /// Counts the value at a key. If it is refused, notes the key.
    fn at(&mut self, key: &dyn ToString, value: &'a Value) -> Result<(), String> {
        let counted = self.value(value);
        if counted.is_err() {
            self.path.push(key.to_string());
        }
        counted
    }

    fn object(&mut self, members: &'a Map<String, Value>) -> Result<(), String> {
        let has = |name: &str| members.contains_key(name);
        let length = |name: &str| match members.get(name) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(members)) => members.len(),
            _ => 0,
        };
        self.tally.names += length("properties") + length("required");
        let in_place = members.keys().filter(|name| IN_PLACE.contains(&name.as_str())).count();
        let others = members.keys().filter(|name| !ANNOTATIONS.contains(&name.as_str())).count() - in_place;
        self.has_intersections |= in_place > 1 || in_place == 1 && others > 0 || length("allOf") > 1;
        let chooses = has("enum") || has("const");
        self.tally.is_heavy |= self.has_intersections
            || length("oneOf") > LIGHT_BRANCHES
            || has("patternProperties")
            || has("minProperties")
            || has("maxProperties")
            || (has("pattern") || has("format")) && (chooses || has("minLength") || has("maxLength"));
        if let Some(Value::Object(names)) = members.get("propertyNames") {
            // The rewrite makes a property of each listed name, and a pattern of other names.
            self.tally.names += names.get("enum").and_then(Value::as_array).map_or(0, Vec::len);
            self.tally.is_heavy |=
                ["pattern", "$ref", "anyOf", "oneOf"].iter().any(|keyword| names.contains_key(*keyword));
        }
        if let Some(Value::String(pattern)) = members.get("pattern") {
            regex::count(pattern, self.tally)?;
        }
        if let Some(Value::Object(patterns)) = members.get("patternProperties") {
            self.tally.names += patterns.len();
            patterns.keys().try_for_each(|pattern| regex::count(pattern, self.tally))?;
        }
        members.get("multipleOf").and_then(rewriter::double).map_or(Ok(()), |divisor| self.multiple_of(divisor))
    }

    fn multiple_of(&mut self, divisor: f64) -> Result<(), String> {
        let (digits, places) = decimal(divisor);
        if digits > MAX_MULTIPLE || places > MAX_PLACES {
            return Err(format!(
                "multipleOf may have digits up to {MAX_MULTIPLE} and {MAX_PLACES} decimal places, and {divisor} has more"
            ));
        }
        self.tally.is_heavy |= digits > LIGHT_MULTIPLE;
        if digits > 0 {
            self.multiple = least_common_multiple(self.multiple, digits);
            let scaled = digits * 10_u64.pow((MAX_PLACES - places) as u32);
            self.scaled = least_common_multiple(self.scaled, scaled);
            self.largest = self.largest.max(scaled);
            self.places = self.places.max(places);
        }
        Ok(())
    }

    /// Returns the largest product that the library may compute to intersect two `multipleOf`. It writes both without
    /// decimal places, and multiplies them before it divides by their greatest common divisor.
    fn product(&self) -> u64 {
        let unit = 10_u64.pow((MAX_PLACES - self.places) as u32);
        (self.scaled / unit).saturating_mul(self.largest / unit)
    }

    /// Returns the number of regular expressions that a text must match to be valid under `schema`.
    fn patterns(&mut self, schema: &'a Value) -> usize {
        let key = std::ptr::from_ref(schema);
        if let Some(counted) = self.patterns.get(&key) {
            return counted.unwrap_or(0);
        }
        self.patterns.insert(key, None);
        let pattern = schema["pattern"].as_str();
        // Each lookahead of a pattern is an expression of its own.
        let own = pattern.map_or(0, |pattern| rewriter::conditions(pattern).map_or(1, |all| all.len()));
        let own = own + usize::from(schema["format"].is_string());
        let list = |name: &str| schema[name].as_array().map_or(&[][..], Vec::as_slice);
        let all: usize = list("allOf").iter().map(|branch| self.patterns(branch)).sum();
        let any: usize = ["anyOf", "oneOf"]
            .iter()
            .map(|name| list(name).iter().map(|branch| self.patterns(branch)).max().unwrap_or(0))
            .sum();
        let referred = schema["$ref"].as_str().map_or_else(Vec::new, |reference| targets(self.root, reference));
        let referred = referred.into_iter().map(|value| self.patterns(value)).max().unwrap_or(0);
        let patterns = own.saturating_add(all).saturating_add(any).saturating_add(referred);
        self.patterns.insert(key, Some(patterns));
        patterns
    }
}

/// Returns a number's digits without the decimal point, and the number of decimal places.
fn decimal(number: f64) -> (u64, usize) {
    let text = number.abs().to_string();
    let places = text.split_once('.').map_or(0, |(_, places)| places.len());
    (text.replace('.', "").parse().unwrap_or(u64::MAX), places)
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    (a / greatest_divisor(a, b)).saturating_mul(b)
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counted(schema: &Value) -> Result<Tally, String> {
        let mut tally = Tally::default();
        count(schema, &mut tally).map(|()| tally)
    }

    /// Returns a chain of definitions. Each wraps a reference to the previous one with `link`.
    fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
        let definition = |at: usize| match at {
            0 => json!({"type": "integer"}),
            _ => link(json!({"$ref": format!("#/$defs/d{}", at - 1)})),
        };
        let definitions: Map<_, _> = (0..length).map(|at| (format!("d{at}"), definition(at))).collect();
        json!({"$defs": definitions, "$ref": format!("#/$defs/d{}", length - 1)})
    }

    #[test]
    fn levels_are_counted_through_references() {
        let items = |inner| json!({"type": "array", "items": inner});
        assert!(counted(&chain(600, items)).is_ok());
        assert!(counted(&chain(3000, items)).unwrap_err().contains("levels"));
        let cycle = |length: usize| {
            let mut schema = chain(length, |inner| json!({"anyOf": [inner, {"type": "null"}]}));
            schema["$defs"]["d0"] = json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", length - 1)}});
            counted(&schema)
        };
        assert!(cycle(100).is_ok() && cycle(1000).is_err());
        assert!(counted(&json!({"$ref": "#"})).is_ok() && counted(&json!({"$ref": "elsewhere"})).is_ok());
    }

    #[test]
    fn references_to_everything_are_not_followed_forever() {
        // Each definition contains all the following ones.
        let definitions =
            |count: usize| (0..count).fold(json!({"enum": vec![0; 1000]}), |inner, _| json!({"a": inner}));
        let reference = |at: usize| json!({"$ref": format!("#{}", "/a".repeat(at + 1))});
        let schema = |count: usize| {
            let references: Vec<_> = (0..count).map(reference).collect();
            let mut schema = definitions(count);
            schema["anyOf"] = json!(references);
            schema
        };
        assert!(counted(&schema(10)).is_ok());
        assert!(counted(&schema(600)).unwrap_err().contains("too many"));
    }

    #[test]
    fn escaped_references_are_followed() {
        let nested = (0..900).fold(json!({}), |inner, _| json!({"items": inner}));
        for (key, reference) in [("a/b", "#/$defs/a~1b"), ("a~b", "#/$defs/a~0b"), ("ab", "#/%24defs/%61b")] {
            let link = (0..1200).fold(json!({"$ref": reference}), |inner, _| json!({"items": inner}));
            let mut schema = link;
            schema["$defs"] = json!({key: nested.clone()});
            assert!(counted(&schema).unwrap_err().contains("levels"), "{reference}");
        }
    }

    #[test]
    fn patterns_of_one_text_are_added_up() {
        let pattern = |at: usize| json!({"type": "string", "pattern": format!("{at}.*")});
        let all = |n: usize| json!({"allOf": (0..n).map(pattern).collect::<Vec<_>>()});
        assert!(counted(&pattern(1)).is_ok_and(|tally| !tally.is_heavy));
        assert!(counted(&all(4)).is_ok_and(|tally| tally.is_heavy));
        assert!(counted(&all(20)).unwrap_err().contains("patterns"));
        let ahead = |n: usize| json!({"type": "string", "pattern": format!("^{}a", "(?=.*b)".repeat(n))});
        assert!(counted(&ahead(4)).unwrap().is_heavy);
        assert!(counted(&ahead(20)).unwrap_err().contains("patterns"));
        assert!(counted(&chain(20, |inner| json!({"allOf": [inner, pattern(2)]}))).unwrap_err().contains("patterns"));
    }

    #[test]
    fn multiples_are_bounded_alone_and_together() {
        let multiple = |of: Value| json!({"type": "number", "multipleOf": of});
        assert!([json!(7), json!(0.01), json!(1000)].into_iter().all(|of| !counted(&multiple(of)).unwrap().is_heavy));
        assert!([json!(1_000_003), json!(1e-9), json!(1e300)].into_iter().all(|of| counted(&multiple(of)).is_err()));
        let both = json!({"allOf": [multiple(json!(9973)), multiple(json!(9967))]});
        assert!(counted(&both).unwrap_err().contains("multiple of"));
        let all = |a: Value, b: Value| counted(&json!({"allOf": [multiple(a), multiple(b)]}));
        assert!(all(json!(0.01), json!(0.5)).is_ok() && all(json!(0.01), json!(100)).is_ok());
        // The library multiplies them in 32 bits.
        assert!(all(json!(100_000), json!(50_000)).unwrap_err().contains("combined"));
        assert!(all(json!(0.000_001), json!(100_000)).unwrap_err().contains("combined"));
        let exact: Value = serde_json::from_str(&rewriter::exact_numbers("1e400")).unwrap();
        assert!(counted(&multiple(exact)).is_ok(), "the rewrite refuses it");
        let exact: Value = serde_json::from_str(&rewriter::exact_numbers("12345678901234567890123")).unwrap();
        assert!(counted(&multiple(exact)).unwrap_err().contains("multipleOf"));
    }

    #[test]
    fn names_of_conditions_on_names_are_counted() {
        let names = |schema: Value| counted(&json!({"type": "object", "propertyNames": schema})).unwrap();
        let list = names(json!({"enum": ["a", "b", "c"]}));
        assert!(list.names == 3 && !list.is_heavy);
        assert!(
            [json!({"pattern": "a"}), json!({"$ref": "#"}), json!({"anyOf": []})]
                .into_iter()
                .all(|s| names(s).is_heavy)
        );
    }

    #[test]
    fn refusals_name_the_place() {
        let schema = json!({"properties": {"a/b": {"anyOf": [{}, {"multipleOf": 1e-9}]}}});
        let why = counted(&schema).unwrap_err();
        assert!(why.starts_with("#/properties/a~1b/anyOf/1: multipleOf"), "{why}");
    }

    #[test]
    fn common_schemas_are_light() {
        let address = json!({"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string",
            "pattern": "^[0-9]{5}$"}}, "required": ["street"], "additionalProperties": false});
        let schema = json!({"$defs": {"address": address}, "type": "object", "title": "Person", "properties": {
            "name": {"type": "string", "maxLength": 50, "description": "all of it"},
            "kind": {"type": "string", "enum": ["a", "b"]}, "age": {"type": "integer", "minimum": 0},
            "home": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}], "default": null},
            "rest": {"type": "array", "items": {"$ref": "#/$defs/address"}, "maxItems": 5}}, "required": ["name"]});
        assert!(!counted(&schema).unwrap().is_heavy);
    }
}
