//! Calls in notations other than JSON: Gemma 4's, Python's as OLMo 3 and LFM2 write it, and Qwen3-Coder's tags.

use serde_json::{Map, Number, Value};

use super::ToolFormat;

/// Gemma's mark at both ends of a string. Nothing in the string is escaped.
const MARK: &str = "<|\"|>";
/// Most values within each other.
const MAX_DEPTH: usize = 64;

/// Parses the calls between a format's markers. Returns each tool's name with its arguments, or `None` if the text is
/// something else. `strings` has the arguments that are strings, each with the name of its tool.
pub(super) fn parse(
    format: ToolFormat,
    block: &str,
    strings: &[(String, String)],
) -> Option<Vec<(String, Map<String, Value>)>> {
    let mut text = Text { rest: block, depth: 0, has_bare_strings: format == ToolFormat::Gemma4 };
    match format {
        ToolFormat::Gemma4 => {
            text.take("call:").then_some(())?;
            let name = text.word()?;
            let call = (name, text.object()?);
            text.is_over().then(|| vec![call])
        }
        ToolFormat::Qwen3Coder => {
            let mut calls = Vec::new();
            while !text.is_over() {
                calls.push(text.tagged(strings)?);
            }
            (!calls.is_empty()).then_some(calls)
        }
        _ => {
            let mut calls = Vec::new();
            let is_list = text.take("[");
            while !(text.is_over() || is_list && text.take("]")) {
                let name = text.word()?;
                calls.push((name, text.python_arguments()?));
                text.take(",");
            }
            (text.is_over() && !calls.is_empty()).then_some(calls)
        }
    }
}

/// Text that is not read yet.
struct Text<'a> {
    rest: &'a str,
    depth: usize,
    /// Whether a word that is not a value is a string, as vLLM reads Gemma's calls.
    has_bare_strings: bool,
}

impl Text<'_> {
    /// Skips white space, and `token` if it follows. Returns whether it does.
    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Whether only white space is left.
    fn is_over(&self) -> bool {
        self.rest.trim_start().is_empty()
    }

    /// Reads a name: everything up to white space or punctuation.
    fn word(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        let is_punctuation = |c: char| c.is_whitespace() || "{}[]()<>,:=\"'".contains(c);
        let end = self.rest.find(is_punctuation).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then(|| word.to_owned())
    }

    /// Reads everything up to `end`, and skips it.
    fn until(&mut self, end: &str) -> Option<String> {
        let (text, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(text.to_owned())
    }

    /// Reads a call in tags. Arguments may be an object.
    fn tagged(&mut self, strings: &[(String, String)]) -> Option<(String, Map<String, Value>)> {
        self.take("<function=").then_some(())?;
        let name = self.until(">")?;
        self.take("");
        let mut arguments = if self.rest.starts_with('{') { self.object()? } else { Map::new() };
        while !self.take("</function>") {
            self.take("<parameter=").then_some(())?;
            let key = self.until(">")?;
            let value = self.until("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(&value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let is_string = strings.iter().any(|(tool, argument)| *tool == name && *argument == key);
            let value = match serde_json::from_str::<Value>(value) {
                Ok(other) if !is_string && !other.is_string() => other,
                _ => Value::from(value),
            };
            arguments.insert(key, value);
        }
        Some((name, arguments))
    }

    /// Reads Python's arguments: keywords with values, or `**` and an object.
    fn python_arguments(&mut self) -> Option<Map<String, Value>> {
        let mut arguments = Map::new();
        self.take("(").then_some(())?;
        while !self.take(")") {
            if self.take("**") {
                arguments.extend(self.object()?);
            } else {
                let name = self.word()?;
                self.take("=").then_some(())?;
                arguments.insert(name, self.value()?);
            }
            if !self.take(",") {
                self.take(")").then_some(())?;
                break;
            }
        }
        Some(arguments)
    }

    /// Reads an object, whose keys may be without quotes.
    fn object(&mut self) -> Option<Map<String, Value>> {
        let mut members = Map::new();
        self.take("{").then_some(())?;
        while !self.take("}") {
            let key = self.string().or_else(|| self.word())?;
            self.take(":").then_some(())?;
            members.insert(key, self.value()?);
            if !self.take(",") {
                self.take("}").then_some(())?;
                break;
            }
        }
        Some(members)
    }

    fn list(&mut self, [open, close]: [&str; 2]) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        self.take(open).then_some(())?;
        while !self.take(close) {
            items.push(self.value()?);
            if !self.take(",") {
                self.take(close).then_some(())?;
                break;
            }
        }
        Some(items)
    }

    fn value(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        let value = match self.rest.chars().next()? {
            '{' => Value::Object(self.object()?),
            '[' => Value::Array(self.list(["[", "]"])?),
            '(' => Value::Array(self.list(["(", ")"])?),
            '<' | '"' | '\'' => Value::String(self.string()?),
            _ => match self.word()?.as_str() {
                "true" | "True" => Value::Bool(true),
                "false" | "False" => Value::Bool(false),
                "null" | "None" => Value::Null,
                "none" | "nil" if self.has_bare_strings => Value::Null,
                // Python allows `.5` and `1_000`.
                word => match format!("{}{}", if word.starts_with('.') { "0" } else { "" }, word.replace('_', ""))
                    .parse::<Number>()
                {
                    Ok(number) => Value::Number(number),
                    Err(_) if self.has_bare_strings => Value::String(word.to_owned()),
                    Err(_) => return None,
                },
            },
        };
        self.depth -= 1;
        Some(value)
    }

    /// Reads a string, if one follows.
    fn string(&mut self) -> Option<String> {
        if self.take(MARK) {
            let (string, rest) = self.rest.split_once(MARK)?;
            self.rest = rest;
            return Some(string.to_owned());
        }
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map(|(_, c)| c).filter(|c| matches!(c, '"' | '\''))?;
        let mut string = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => escaped(&mut chars, &mut string)?,
                _ if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(string);
                }
                _ => string.push(c),
            }
        }
        None
    }
}

/// Reads what follows a backslash, and adds the character that it stands for in Python and in JSON. Python keeps the
/// backslash if it escapes nothing. A character beyond U+FFFF is two of JSON's.
fn escaped(chars: &mut std::str::CharIndices<'_>, string: &mut String) -> Option<()> {
    let number = |chars: &mut std::str::CharIndices<'_>, digits: usize| {
        (0..digits).try_fold(0, |code, _| Some(16 * code + chars.next()?.1.to_digit(16)?))
    };
    let code = match chars.next()?.1 {
        'a' => 0x07,
        'b' => 0x08,
        't' => 0x09,
        'n' => 0x0A,
        'v' => 0x0B,
        'f' => 0x0C,
        'r' => 0x0D,
        same @ ('\\' | '\'' | '"' | '/') => same.into(),
        'x' => number(chars, 2)?,
        'u' => match number(chars, 4)? {
            high @ 0xD800..0xDC00 => {
                (chars.next()?.1 == '\\' && chars.next()?.1 == 'u').then_some(())?;
                let low = number(chars, 4)?;
                0x10000 + ((high - 0xD800) << 10) + low.checked_sub(0xDC00)?
            }
            code => code,
        },
        other => {
            string.extend(['\\', other]);
            return Some(());
        }
    };
    string.push(char::from_u32(code)?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: ToolFormat, block: &str) -> Option<Value> {
        let strings = [("get".to_owned(), "zip".to_owned())];
        let calls = parse(format, block, &strings)?.into_iter();
        Some(calls.map(|(name, arguments)| Value::Array(vec![name.into(), arguments.into()])).collect())
    }

    #[test]
    fn gemma_quotes_strings_with_a_mark_of_its_own() {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let one = "call:get_weather{city:<|\"|>a \"b\", {c}<|\"|>,days:[1,-2.5],deep:{x:true,y:null}}";
        let want = r#"[["get_weather", {"city": "a \"b\", {c}", "days": [1, -2.5], "deep": {"x": true, "y": null}}]]"#;
        assert_eq!(read(ToolFormat::Gemma4, one), json(want));
        assert_eq!(read(ToolFormat::Gemma4, "call:f{\"a\": \"\\u0041\\n\"}"), json(r#"[["f", {"a": "A\n"}]]"#));
        assert_eq!(read(ToolFormat::Gemma4, "call:f{}"), json(r#"[["f", {}]]"#));
        assert_eq!(read(ToolFormat::Gemma4, "call:f{a:yes,b:nil}"), json(r#"[["f", {"a": "yes", "b": null}]]"#));
        for other in ["f{}", "call:f", "call:f{a}", "call:f{a:<|\"|>x}", "call:f{a:1}}"] {
            assert_eq!(read(ToolFormat::Gemma4, other), None, "{other}");
        }
        let deep = format!("call:f{{a:{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(ToolFormat::Gemma4, &deep), None);
    }

    #[test]
    fn python_calls_have_keywords() {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let two = "\nget(city='it\\'s \"x\"', n=1e3, on=True, none=None)\nset(**{\"a\": [1, 'b']})\n";
        let want = r#"[["get", {"city": "it's \"x\"", "n": 1e3, "on": true, "none": null}], ["set", {"a": [1, "b"]}]]"#;
        assert_eq!(read(ToolFormat::Olmo3, two), json(want));
        let escapes = r#"get(a='\\" b\\', b="\x41\u00e4\ud83d\ude00\'")"#;
        assert_eq!(read(ToolFormat::Olmo3, escapes), json(r#"[["get", {"a": "\\\" b\\", "b": "Aä😀'"}]]"#));
        let kept = r#"get(a='\d+\.py', b='\b\\', c=.5, d=1_000, e=(1, 2))"#;
        let want = r#"[["get", {"a": "\\d+\\.py", "b": "\b\\", "c": 0.5, "d": 1000, "e": [1, 2]}]]"#;
        assert_eq!(read(ToolFormat::Olmo3, kept), json(want));
        assert_eq!(read(ToolFormat::Olmo3, "[get(), set(a=1)]"), json(r#"[["get", {}], ["set", {"a": 1}]]"#));
        for other in ["", "get", "get(1)", "get(a=1", "get(a=b)", "import os"] {
            assert_eq!(read(ToolFormat::Olmo3, other), None, "{other}");
        }
    }

    #[test]
    fn tags_contain_text_or_json() {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let two = "\n<function=get>\n<parameter=zip>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n<parameter=text>\n\na <b>\n\n</parameter>\n\
                   </function>\n<function=set>\n</function>\n";
        let want = r#"[["get", {"zip": "12", "n": 12, "text": "\na <b>\n"}], ["set", {}]]"#;
        assert_eq!(read(ToolFormat::Qwen3Coder, two), json(want));
        assert_eq!(read(ToolFormat::Qwen3Coder, "<function=f>{\"a\": [1]}</function>"), json(r#"[["f", {"a": [1]}]]"#));
        for other in ["", "get", "<function=f>", "<function=f><parameter=a></function>", "<function=f>x</function>"] {
            assert_eq!(read(ToolFormat::Qwen3Coder, other), None, "{other}");
        }
    }
}
