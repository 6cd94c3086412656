//! Chat templates: Jinja, as in `tokenizer_config.json`.

use engine::load::ModelFiles;
use engine::{Error, Result};
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use serde_json::{Map, Value};

const NAME: &str = "chat";
/// Instructions that a template may execute. Templates come with models, and must not hang the server.
const FUEL: u64 = 10_000_000;

/// A message of a conversation, its content joined to one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Who speaks, where several have the same role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Turns conversations into prompts. Contents of messages are data: no Jinja in them is executed.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and so on.
    special_tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// The template of a model, or `other` in its place; nothing if there is none.
    ///
    /// # Errors
    /// If it is not valid Jinja.
    pub fn of_model(files: &ModelFiles, other: Option<&str>) -> Result<Option<Self>> {
        let settings: Map<String, Value> = match files.read("tokenizer_config.json")? {
            Some(text) => serde_json::from_slice(&text)
                .map_err(|error| Error::Tokenizer(format!("tokenizer_config.json: {error}")))?,
            None => Map::new(),
        };
        let file = files.read("chat_template.jinja")?.map(|text| String::from_utf8_lossy(&text).into_owned());
        let template = other.map(str::to_owned).or(file).or_else(|| default_template(settings.get("chat_template")?));
        template.map(|template| Self::new(template, &settings)).transpose()
    }

    fn new(template: String, settings: &Map<String, Value>) -> Result<Self> {
        let mut environment = Environment::new();
        // As Hugging Face sets Jinja up.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, template)
            .map_err(|error| Error::Tokenizer(format!("the chat template is not valid: {error}")))?;
        let token = |name: &str| {
            let value = settings.get(name)?;
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.to_owned(), Value::from(text)))
        };
        let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
        Ok(ChatTemplate { environment, special_tokens: names.into_iter().filter_map(token).collect() })
    }

    /// The prompt for the assistant's answer to `messages`.
    ///
    /// # Errors
    /// What the template does not like about them.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, String> {
        let own = context! { messages, add_generation_prompt };
        let tokens = minijinja::Value::from_serialize(&self.special_tokens);
        let render = || self.environment.get_template(NAME)?.render(context! { ..own, ..tokens });
        render().map_err(|error: minijinja::Error| match error.detail() {
            Some(detail) => detail.to_owned(),
            None => error.to_string(),
        })
    }
}

/// The template itself, or the one named "default" where there are several.
fn default_template(value: &Value) -> Option<String> {
    match value {
        Value::String(template) => Some(template.clone()),
        several => {
            let named = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
            Some(several.as_array()?.iter().find(named)?.get("template")?.as_str()?.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into(), name: None }
    }

    fn template(text: &str) -> ChatTemplate {
        let settings = serde_json::from_str(r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#).unwrap();
        ChatTemplate::new(text.into(), &settings).unwrap()
    }

    #[test]
    fn special_tokens_and_python_methods_are_there() {
        let t = template(
            "{{ bos_token }}{% for m in messages %}[{{ m['role'].upper() }}] {{ m.content.strip() }}{{ eos_token }}{% endfor %}",
        );
        assert_eq!(t.render(&[message("user", " hi ")], true), Ok("<s>[USER] hi</s>".into()));
    }

    #[test]
    fn contents_are_not_executed() {
        let t = template("{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}");
        for content in ["{{ 7 * 7 }}", "{% for i in range(9) %}x{% endfor %}", "{# gone #}", "<b>&amp;</b>"] {
            assert_eq!(t.render(&[message("user", content)], true), Ok(format!("{content}>")));
        }
    }

    #[test]
    fn exceptions_and_endless_templates_are_errors() {
        let t = template("{% if messages[0].role != 'user' %}{{ raise_exception('begin with a user') }}{% endif %}");
        assert_eq!(t.render(&[message("system", "x")], true), Err("begin with a user".into()));
        let endless = template("{% for i in range(10000) %}{% for j in range(10000) %}x{% endfor %}{% endfor %}");
        assert!(endless.render(&[], true).is_err());
        assert!(ChatTemplate::new("{% if %}".into(), &Map::new()).is_err());
    }
}
