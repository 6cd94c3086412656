//! Turns schemas into regular expressions for their documents.

use std::collections::HashSet;

use llguidance::derivre::RegexAst;
use serde_json::{Value, json};

use super::keywords::{FORMATS, HOSTNAME, LABELS, MAX_HOSTNAME, PATTERN_COST, TYPES, has_type, shown};
use super::leaf::{self, Condition};
use super::{COMBINED, Members, Pass, is_constraint, number, pattern, pointer};
use checkpoint::error::Result;

/// Maximum number of item values for which `uniqueItems` is enforced.
const MAX_UNIQUE: usize = 8;
/// Maximum nesting of references and alternatives that the search for a schema's documents follows.
const MAX_STEPS: usize = 8;
/// Maximum schemas and listed values that one search reads.
const MAX_READ: usize = 10_000;
const STRINGS: [&str; 5] = ["type", "pattern", "format", "minLength", "maxLength"];
const NUMBERS: [&str; 7] =
    ["type", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const ARRAYS: [&str; 5] = ["type", "items", "minItems", "maxItems", "uniqueItems"];

impl<'a> Pass<'a> {
    /// Returns a leaf if only a regular expression can describe all or some of the schema's documents.
    pub(super) fn leaf(&mut self, members: &'a Members) -> Result<Option<Value>> {
        let only =
            |keywords: &[&str]| members.keys().all(|key| !is_constraint(key) || keywords.contains(&key.as_str()));
        if only(&["type", "const", "enum"])
            && ["const", "enum"].iter().any(|key| members.get(*key).is_some_and(number::has_inexact))
        {
            return self.constants_apart(members).map(Some);
        }
        let bounds = || NUMBERS[2..6].iter().filter_map(|keyword| members.get(*keyword));
        if only(&NUMBERS) && has_type(members, "integer") && bounds().any(number::is_inexact) {
            return self.for_each_type(members, "integer", Self::integer).map(Some);
        }
        let text = members.get("pattern").and_then(Value::as_str).unwrap_or_default();
        let may_be_string = !members.contains_key("type") || has_type(members, "string");
        if only(&STRINGS) && may_be_string && pattern::looks_around(text) && !pattern::is_duration(text) {
            return self.for_each_type(members, "string", Self::string).map(Some);
        }
        if only(&ARRAYS) && members.get("type").is_some_and(|kind| kind == "array") {
            return self.unique_array(members);
        }
        Ok(None)
    }

    /// Rewrites a schema as alternatives by type. The type `name` becomes a leaf.
    fn for_each_type(
        &mut self,
        members: &'a Members,
        name: &str,
        leaf: fn(&mut Self, &'a Members) -> Result<Value>,
    ) -> Result<Value> {
        let leaf = leaf(self, members)?;
        let others: Vec<&str> = match members.get("type") {
            Some(Value::String(_)) => return Ok(leaf),
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != name).collect(),
            // The type "number" includes integers.
            _ => TYPES.into_iter().filter(|kind| *kind != name && *kind != "integer").collect(),
        };
        // The leaf's keywords do not apply to the other types. The exception is "number", which shares the keywords of
        // "integer".
        if name == "integer" && others.contains(&"number") {
            return Err(self.refusal(COMBINED));
        }
        Ok(if others.is_empty() { leaf } else { json!({"anyOf": [leaf, {"type": others}]}) })
    }

    fn integer(&mut self, members: &'a Members) -> Result<Value> {
        let get = |keyword: &str| members.get(keyword).filter(|value| !value.is_boolean());
        // In old drafts, these keywords are booleans that say whether the bound itself is excluded.
        let excludes = |keyword: &str| members.get(keyword) == Some(&Value::Bool(true));
        let bounds = [
            ("minimum", get("minimum").map(|value| number::least(value, excludes("exclusiveMinimum")))),
            ("exclusiveMinimum", get("exclusiveMinimum").map(|value| number::least(value, true))),
            ("maximum", get("maximum").map(|value| number::greatest(value, excludes("exclusiveMaximum")))),
            ("exclusiveMaximum", get("exclusiveMaximum").map(|value| number::greatest(value, true))),
        ];
        let mut found = [None; 4];
        for ((keyword, bound), found) in bounds.into_iter().zip(&mut found) {
            *found = match bound {
                Some(None) => {
                    return self.at(&[keyword], |pass| Err(pass.refusal("must be a number of up to 30 digits")));
                }
                Some(bound) => bound,
                None => None,
            };
        }
        let [minimum, above, maximum, below] = found;
        let least = minimum.into_iter().chain(above).max();
        let greatest = maximum.into_iter().chain(below).min();
        if least.zip(greatest).is_some_and(|(least, greatest)| least > greatest) {
            return Err(self.refusal("no integer is between these bounds"));
        }
        let multiple = match members.get("multipleOf") {
            None => None,
            Some(value) => {
                let multiple =
                    number::count(value).and_then(|count| u32::try_from(count).ok()).filter(|&count| count > 0);
                let why = "must be a whole number up to 4294967295 together with bounds as large as these";
                Some(multiple.ok_or(()).or_else(|()| self.at(&["multipleOf"], |pass| Err(pass.refusal(why))))?)
            }
        };
        self.add_leaf(leaf::integer(least, greatest, multiple))
    }

    fn string(&mut self, members: &'a Members) -> Result<Value> {
        let text = members.get("pattern").and_then(Value::as_str).unwrap_or_default();
        self.spend(text.len() * PATTERN_COST)?;
        let mut conditions = self.at(&["pattern"], |pass| {
            pattern::conditions(text).map_err(|why| pass.refusal(format!("the pattern {} {why}", shown(text))))
        })?;
        match members.get("format").and_then(Value::as_str) {
            Some("email") => conditions.push(Condition { regex: "^[^@]+@[^@]+$".into(), must_match: true }),
            Some("hostname") => {
                let condition = |regex: &str| Condition { regex: regex.into(), must_match: true };
                conditions.extend([HOSTNAME, LABELS].map(condition));
            }
            Some(format) if FORMATS.contains(&format) => {
                let why = "this format is not supported together with a pattern that looks ahead";
                return self.at(&["format"], |pass| Err(pass.refusal(why)));
            }
            _ => {}
        }
        let mut length = |keyword: &str| match members.get(keyword) {
            None => Ok(None),
            Some(value) => match number::count(value) {
                Some(count) => Ok(Some(count)),
                None => self.at(&[keyword], |pass| Err(pass.refusal("must be a whole number that is not negative"))),
            },
        };
        let bound = members.get("format").is_some_and(|format| format == "hostname").then_some(MAX_HOSTNAME);
        let most = length("maxLength")?.into_iter().chain(bound).min();
        let least = length("minLength")?.unwrap_or(0);
        if most.is_some_and(|most| most < least) {
            return Err(self.refusal("minLength is greater than maxLength"));
        }
        self.add_leaf(leaf::string(&conditions, least, most))
    }

    /// Rewrites constants if the library would round some of them. Those constants become leaves.
    fn constants_apart(&mut self, members: &'a Members) -> Result<Value> {
        let listed = match (members.get("const"), members.get("enum")) {
            (Some(value), None) => vec![("const".to_owned(), value)],
            (None, Some(Value::Array(values))) => {
                values.iter().enumerate().map(|(at, value)| (format!("enum/{at}"), value)).collect()
            }
            (None, _) => return self.at(&["enum"], |pass| Err(pass.refusal("must be an array"))),
            _ => return Err(self.refusal(COMBINED)),
        };
        let is_of_type = |value: &Value| match members.get("type") {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| is_of(value, kind)),
            Some(kind) => is_of(value, kind),
        };
        let (mut options, mut plain) = (Vec::new(), Vec::new());
        for (place, value) in listed.into_iter().filter(|(_, value)| is_of_type(value)) {
            self.spend_on(value)?;
            if number::has_inexact(value) {
                let keys: Vec<&str> = place.split('/').collect();
                options.push(self.at(&keys, |pass| pass.constant(value))?);
            } else {
                plain.push(value.clone());
            }
        }
        if !plain.is_empty() {
            options.push(json!({"enum": plain}));
        }
        match options.len() {
            0 => Err(self.refusal("no value is of the type")),
            1 => Ok(options.swap_remove(0)),
            _ => Ok(json!({"anyOf": options})),
        }
    }

    /// Returns a schema that accepts only `value`.
    fn constant(&mut self, value: &Value) -> Result<Value> {
        if let (true, Some(text)) = (number::is_inexact(value), number::text(value)) {
            return self.add_leaf(RegexAst::Literal(text));
        }
        match value {
            _ if !number::has_inexact(value) => Ok(json!({"const": value})),
            Value::Array(items) => {
                let all: Vec<Value> = items.iter().map(|item| self.constant(item)).collect::<Result<_>>()?;
                Ok(
                    json!({"type": "array", "minItems": all.len(), "maxItems": all.len(), "prefixItems": all, "items": false}),
                )
            }
            Value::Object(members) => {
                let mut properties = Members::new();
                for (name, value) in members {
                    properties.insert(name.clone(), self.constant(value)?);
                }
                let required: Vec<&String> = members.keys().collect();
                Ok(
                    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}),
                )
            }
            _ => Ok(json!({"const": value})),
        }
    }

    /// Returns all documents of a schema without duplicates. `None` if the schema does not list them simply enough, or
    /// lists more than `most`.
    ///
    /// # Errors
    /// If the pass has read too much.
    pub(super) fn finite(&mut self, schema: &'a Value, most: usize) -> Result<Option<Vec<&'a Value>>> {
        let mut left = MAX_READ;
        let found = listed(self.root, schema, 0, &mut left);
        self.spend((MAX_READ - left) * super::SCHEMA_COST)?;
        let Some(found) = found else { return Ok(None) };
        let (mut seen, mut different) = (HashSet::new(), Vec::new());
        for value in found {
            self.spend_on(value)?;
            if seen.insert(value) {
                different.push(value);
            }
            if different.len() > most {
                return Ok(None);
            }
        }
        Ok(Some(different))
    }

    /// Rewrites an array with unique items as a leaf, if the items have few possible values.
    fn unique_array(&mut self, members: &'a Members) -> Result<Option<Value>> {
        if members.get("uniqueItems") != Some(&Value::Bool(true)) || self.is_combined {
            return Ok(None);
        }
        let Some(items) = members.get("items") else { return Ok(None) };
        let values = self.finite(items, MAX_UNIQUE)?.filter(|values| values.len() > 1);
        let Some(values) = values else { return Ok(None) };
        let count = |keyword: &str| match members.get(keyword) {
            None => Some(None),
            Some(value) => number::count(value).map(|count| Some(usize::try_from(count).unwrap_or(usize::MAX))),
        };
        let (Some(least), Some(most)) = (count("minItems"), count("maxItems")) else { return Ok(None) };
        let (least, most) = (least.unwrap_or(0), most.unwrap_or(usize::MAX).min(values.len()));
        if least > most {
            return Err(self.refusal(format!("there are only {most} different items")));
        }
        self.add_leaf(leaf::unique_array(&values, least, most)).map(Some)
    }
}

fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("integer") => number::is_whole(value),
        Some("number") => number::text(value).is_some(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object() && number::text(value).is_none(),
        _ => false,
    }
}

/// Returns the documents that a schema lists, with duplicates, or `None` if the schema does not list them simply enough.
/// Takes one from `left` for each schema and document, and returns `None` if `left` is too small.
fn listed<'a>(root: &'a Value, schema: &'a Value, steps: usize, left: &mut usize) -> Option<Vec<&'a Value>> {
    let members = schema.as_object().filter(|_| steps < MAX_STEPS)?;
    *left = left.checked_sub(1)?;
    let mut said = members.keys().filter(|keyword| is_constraint(keyword) && *keyword != "type");
    let keyword = said.next().map(String::as_str);
    if said.next().is_some() {
        return None;
    }
    let mut values: Vec<&'a Value> = match (keyword, keyword.and_then(|keyword| members.get(keyword))) {
        (Some("const"), Some(value)) => vec![value],
        (Some("enum"), Some(Value::Array(values))) => {
            *left = left.checked_sub(values.len())?;
            values.iter().collect()
        }
        (Some("$ref"), Some(Value::String(reference))) => {
            let target = pointer::find(root, &pointer::parse(reference).ok()?)?;
            listed(root, target, steps + 1, left)?
        }
        (Some("anyOf" | "oneOf"), Some(Value::Array(options))) => {
            let mut all = Vec::new();
            for option in options {
                all.append(&mut listed(root, option, steps + 1, left)?);
            }
            all
        }
        (None, None) if has_only_type(members, "boolean") => vec![&Value::Bool(false), &Value::Bool(true)],
        (None, None) if has_only_type(members, "null") => vec![&Value::Null],
        _ => return None,
    };
    values.retain(|value| {
        members.get("type").is_none_or(|kind| match kind {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of(value, kind)),
            kind => is_of(value, kind),
        })
    });
    Some(values)
}

fn has_only_type(members: &Members, name: &str) -> bool {
    members.get("type").is_some_and(|kind| kind == name)
}
