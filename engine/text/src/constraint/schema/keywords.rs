//! Rewrites the keywords of a schema one by one.

use serde_json::{Map, Value, json};

use super::{COMBINED, Members, Pass, disjoint, is_constraint, number, pattern, pointer};
use checkpoint::error::Result;

pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Formats for which the library has regular expressions. Other formats are annotations.
pub(super) const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords that restrict documents and that this pass cannot express.
const UNSUPPORTED: [&str; 9] = [
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "not",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];
/// Host names whose labels have no two hyphens in a row. They cannot be confused with internationalized names such as
/// `xn--...`.
pub(super) const HOSTNAME: &str = r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)*$";
/// Requires the labels of a host name to have 1 to 63 characters.
pub(super) const LABELS: &str = r"^[^.]{1,63}(\.[^.]{1,63})*$";
/// Maximum characters of user text in an error message.
const MAX_SHOWN: usize = 100;
/// Assumed cost of parsing a byte of a pattern, in copied bytes.
pub(super) const PATTERN_COST: usize = 16;
/// Maximum property names that a condition on property names may list.
const MAX_NAMES: usize = 5000;
/// Maximum characters of a host name.
pub(super) const MAX_HOSTNAME: u64 = 253;

/// The rewritten keywords of a schema.
#[derive(Default)]
struct Out {
    members: Members,
    /// Schemas to append to `allOf`.
    all_of: Vec<Value>,
}

/// Whether the schema rejects every document: its `not` is `true` or has no keywords.
pub(super) fn is_never(members: &Members) -> bool {
    members.get("not").is_some_and(is_any)
}

/// Whether a schema has no keywords.
fn is_any(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

impl<'a> Pass<'a> {
    /// Rewrites a schema's keywords in order. The library writes properties in the schema's order.
    pub(super) fn keywords(&mut self, members: &'a Members) -> Result<Value> {
        let mut out = Out::default();
        for (keyword, value) in members {
            self.at(&[keyword], |pass| pass.keyword(members, keyword, value, &mut out))?;
        }
        if !out.all_of.is_empty() {
            let all_of = out.members.entry("allOf").or_insert_with(|| json!([]));
            all_of.as_array_mut().into_iter().for_each(|all| all.append(&mut out.all_of));
        }
        Ok(Value::Object(out.members))
    }

    fn keyword(&mut self, members: &'a Members, keyword: &str, value: &'a Value, out: &mut Out) -> Result<()> {
        let kept = match keyword {
            "type" if is_type(value) => Ok(value.clone()),
            "type" => {
                let shown = shown(&value.to_string());
                Err(self.refusal(format!("must be the name of a type, or an array of them, and not {shown}")))
            }
            "const" | "enum" => self.constants(keyword, value),
            "properties" | "patternProperties" => self.properties(members, keyword, value),
            "additionalProperties" | "additionalItems" => self.visit(value),
            "items" if value.is_array() => self.list(value),
            "items" => self.visit(value),
            "prefixItems" | "allOf" | "anyOf" => self.list(value),
            "oneOf" => return self.one_of(members, value, out),
            "$ref" => self.follow(members, value),
            "required" => {
                self.spend_on(value)?;
                self.checked(value, is_strings(value), "must be an array of strings")
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                self.count(value)
            }
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => Ok(value.clone()),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => self.bound(members, value),
            "multipleOf" => self.multiple(value),
            "pattern" => match self.pattern(members, value)? {
                Some(pattern) => Ok(pattern),
                None => return Ok(()),
            },
            "format" => return self.format(value, out),
            "uniqueItems" => return self.unique_items(members, value, out),
            "propertyNames" => return self.property_names(members, value, out),
            // `if` has no effect without `then` or `else`.
            "if" if members.contains_key("then") || members.contains_key("else") => {
                Err(self.refusal("is not supported"))
            }
            _ if UNSUPPORTED.contains(&keyword) && says_something(keyword, value) => {
                Err(self.refusal("is not supported"))
            }
            // Annotations and unknown keywords.
            _ => return Ok(()),
        }?;
        // If another keyword has already set this one, its condition is stricter.
        out.members.entry(keyword).or_insert(kept);
        Ok(())
    }

    fn checked(&self, value: &Value, is_it: bool, what: &str) -> Result<Value> {
        if is_it { Ok(value.clone()) } else { Err(self.refusal(what)) }
    }

    /// Copies `const` or `enum`. Refuses values with numbers that the library would round, because [`Pass::leaf`]
    /// handles them.
    fn constants(&mut self, keyword: &str, value: &Value) -> Result<Value> {
        if keyword == "enum" && value.as_array().is_none_or(|values| values.is_empty()) {
            return Err(self.refusal("must be an array with at least one value"));
        }
        self.spend_on(value)?;
        if number::has_inexact(value) {
            return Err(self.refusal(COMBINED));
        }
        Ok(value.clone())
    }

    fn properties(&mut self, members: &Members, keyword: &str, value: &'a Value) -> Result<Value> {
        let Value::Object(properties) = value else { return Err(self.refusal("must be an object of schemas")) };
        // The library combines the schemas of a property and of a matching pattern.
        let is_combined = members.contains_key("properties") && members.contains_key("patternProperties");
        let mut all = Map::new();
        for (name, schema) in properties {
            self.spend(name.len() + super::SCHEMA_COST)?;
            let schema = self.at(&[name], |pass| {
                if keyword == "patternProperties" {
                    pass.spend(name.len() * PATTERN_COST)?;
                    pass.plain_pattern(name)?;
                }
                pass.combined(is_combined, |pass| pass.visit(schema))
            })?;
            all.insert(name.clone(), schema);
        }
        Ok(Value::Object(all))
    }

    fn list(&mut self, value: &'a Value) -> Result<Value> {
        let Value::Array(schemas) = value else { return Err(self.refusal("must be an array of schemas")) };
        let schema = |(at, schema): (usize, &'a Value)| self.at(&[&at.to_string()], |pass| pass.visit(schema));
        schemas.iter().enumerate().map(schema).collect()
    }

    /// Rewrites `oneOf` as `anyOf`, which is the same if the branches exclude each other.
    fn one_of(&mut self, members: &'a Members, value: &'a Value, out: &mut Out) -> Result<()> {
        let options = self.list(value)?;
        let branches = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let (are_disjoint, steps) = disjoint::are_disjoint(self.root, members, branches);
        self.spend(steps * super::SCHEMA_COST)?;
        if !are_disjoint {
            self.leave_unchecked("a document may be valid under more than one of these schemas")?;
        }
        if members.contains_key("anyOf") {
            out.all_of.push(json!({"anyOf": options}));
        } else {
            out.members.insert("anyOf".into(), options);
        }
        Ok(())
    }

    fn follow(&mut self, members: &Members, value: &Value) -> Result<Value> {
        let Value::String(reference) = value else { return Err(self.refusal("must be a string")) };
        let path = pointer::parse(reference)
            .map_err(|why| self.refusal(format!("the reference {} {why}", shown(reference))))?;
        if pointer::find(self.root, &path).is_none() {
            return Err(self.refusal(format!("the reference {} points to nothing", shown(reference))));
        }
        let is_other = |keyword: &String| keyword != "$ref" && is_constraint(keyword);
        let is_whole_schema = self.depth == 1 && !members.keys().any(is_other);
        let reference = self.reference(path.clone());
        if is_whole_schema {
            self.targets[self.target].is_alias_of = self.names.get(&path).copied();
        }
        Ok(reference)
    }

    fn count(&mut self, value: &Value) -> Result<Value> {
        let count = number::count(value);
        count.map(Value::from).ok_or_else(|| self.refusal("must be a whole number that is not negative"))
    }

    fn bound(&mut self, members: &Members, value: &Value) -> Result<Value> {
        let bound = number::double(value).ok_or_else(|| self.refusal("must be a number"))?;
        if number::is_inexact(value) && has_type(members, "integer") {
            return Err(self.refusal(COMBINED));
        }
        Ok(if number::is_inexact(value) { json!(bound) } else { value.clone() })
    }

    fn multiple(&mut self, value: &Value) -> Result<Value> {
        match number::double(value) {
            Some(multiple) if multiple > 0.0 && !number::is_same(value, multiple) => {
                Err(self.refusal("has too many digits"))
            }
            Some(multiple) if multiple > 0.0 => Ok(json!(multiple)),
            _ => Err(self.refusal("must be a number above 0")),
        }
    }

    /// Checks a pattern. Returns `None` if the schema's format already implies it.
    fn pattern(&mut self, members: &Members, value: &Value) -> Result<Option<Value>> {
        let Value::String(text) = value else { return Err(self.refusal("must be a string")) };
        if pattern::is_duration(text) && members.get("format").is_some_and(|format| format == "duration") {
            return Ok(None);
        }
        self.spend(text.len() * PATTERN_COST)?;
        if pattern::looks_around(text) {
            pattern::conditions(text).map_err(|why| self.refusal(format!("the pattern {} {why}", shown(text))))?;
            return Err(self.refusal(COMBINED));
        }
        self.plain_pattern(text)?;
        Ok(Some(value.clone()))
    }

    /// Refuses a pattern that the library's regular expressions do not support.
    fn plain_pattern(&self, text: &str) -> Result<()> {
        if pattern::looks_around(text) {
            return Err(self.refusal(format!("the pattern {} cannot look around here", shown(text))));
        }
        pattern::conditions(text).map(drop).map_err(|why| self.refusal(format!("the pattern {} {why}", shown(text))))
    }

    fn format(&mut self, value: &Value, out: &mut Out) -> Result<()> {
        let Value::String(format) = value else { return Err(self.refusal("must be a string")) };
        if format == "hostname" {
            let condition = |pattern: &str| json!({"pattern": pattern});
            out.all_of.extend([condition(HOSTNAME), condition(LABELS), json!({"maxLength": MAX_HOSTNAME})]);
        } else if FORMATS.contains(&format.as_str()) {
            out.members.insert("format".into(), value.clone());
        }
        Ok(())
    }

    fn unique_items(&mut self, members: &'a Members, value: &Value, out: &mut Out) -> Result<()> {
        let Value::Bool(must_be_unique) = value else { return Err(self.refusal("must be true or false")) };
        let most = members.get("maxItems").and_then(number::count);
        if !must_be_unique || most.is_some_and(|most| most <= 1) {
            return Ok(());
        }
        let values = members.get("items").map_or(Ok(None), |items| self.finite(items, 1))?;
        match values.map(|values| values.len()) {
            Some(count @ 0..=1) if !members.contains_key("prefixItems") => {
                out.members.insert("maxItems".into(), json!(count));
                Ok(())
            }
            _ => self.leave_unchecked(
                "different items are only supported for arrays whose items are an enum or const of up to 8 values",
            ),
        }
    }

    /// Rewrites a condition on property names: a schema of all strings, a list of names, or a pattern.
    fn property_names(&mut self, members: &'a Members, value: &'a Value, out: &mut Out) -> Result<()> {
        self.visit(value)?;
        let says_string = |schema: &Members| {
            schema.iter().all(|(keyword, value)| !is_constraint(keyword) || keyword == "type" && value == "string")
        };
        if *value == Value::Bool(true) || value.as_object().is_some_and(says_string) {
            return Ok(());
        }
        let others = |pass: &mut Self| {
            let mut path = pass.path.clone();
            path.pop();
            path.push("additionalProperties".into());
            let is_there = members.contains_key("additionalProperties");
            if is_there { json!({"$ref": pass.reference(path)}) } else { Value::Bool(true) }
        };
        let has_properties = ["properties", "patternProperties"].iter().any(|keyword| members.contains_key(*keyword));
        let only_pattern = |schema: &'a Members| {
            let mut said = schema.keys().filter(|keyword| is_constraint(keyword) && *keyword != "type");
            match (said.next()?.as_str(), said.next()) {
                ("pattern", None) => schema.get("pattern")?.as_str(),
                _ => None,
            }
        };
        let pattern = value.as_object().and_then(only_pattern).filter(|text| !pattern::looks_around(text));
        match (self.finite(value, MAX_NAMES)?, pattern) {
            (Some(names), _) if !has_properties => {
                let schema = others(self);
                let names = names.iter().filter_map(|name| name.as_str());
                let properties: Members = names.map(|name| (name.to_owned(), schema.clone())).collect();
                out.members.insert("properties".into(), Value::Object(properties));
            }
            (None, Some(pattern)) if !has_properties => {
                let schema = others(self);
                out.members.insert("patternProperties".into(), json!({pattern: schema}));
            }
            _ => return self.leave_unchecked("this condition of property names is not supported"),
        }
        out.members.insert("additionalProperties".into(), Value::Bool(false));
        Ok(())
    }
}

/// Returns the start of a text from a schema, short enough for an error message.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether an unsupported keyword has a value that restricts anything.
fn says_something(keyword: &str, value: &Value) -> bool {
    match (keyword, value) {
        ("not", Value::Bool(false)) | ("unevaluatedItems" | "unevaluatedProperties", Value::Bool(true)) => false,
        ("dependencies" | "dependentRequired" | "dependentSchemas", Value::Object(members)) => !members.is_empty(),
        _ => true,
    }
}

fn is_type(value: &Value) -> bool {
    let is_one = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    is_one(value) || value.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_one))
}

fn is_strings(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(Value::is_string))
}

/// Whether the schema lists the type `name`.
pub(super) fn has_type(members: &Members, name: &str) -> bool {
    match members.get("type") {
        Some(Value::String(kind)) => kind == name,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == name),
        _ => false,
    }
}
