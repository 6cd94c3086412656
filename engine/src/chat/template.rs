//! A model's chat template.

use minijinja::{Environment, ErrorKind, context};
use serde_json::{Map, Value};

use super::{Message, RenderOptions};
use crate::error::{Error, Result};
use crate::load::ModelFiles;

const NAME: &str = "chat";
/// Instructions that a template may execute. Templates come with models, and must not hang the server.
const FUEL: u64 = 10_000_000;

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

    /// The prompt that `messages` come to.
    ///
    /// # Errors
    /// What the template does not like about them.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, RenderError> {
        let messages: Vec<minijinja::Value> = messages.iter().map(Message::value).collect();
        let RenderOptions { add_generation_prompt, tools, documents, .. } = options;
        let own = context! { messages, add_generation_prompt, tools, documents };
        let arguments: minijinja::Value = options.arguments.clone().into_iter().collect();
        let tokens = minijinja::Value::from_serialize(&self.special_tokens);
        let render = || self.environment.get_template(NAME)?.render(context! { ..own, ..arguments, ..tokens });
        render().map_err(|error: minijinja::Error| {
            RenderError(error.detail().map_or_else(|| error.to_string(), str::to_owned))
        })
    }

    /// Whether prompts show who says what. If they do not, the model was not made for conversations.
    pub fn marks_roles(&self) -> bool {
        let said = ["Is it so?", "It is.", "And why?"];
        let roles = ["user", "assistant", "user"];
        let messages: Vec<Message> = roles.into_iter().zip(said).map(|(role, text)| Message::new(role, text)).collect();
        let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
        let Ok(mut rest) = self.render(&messages, &options) else { return false };
        let tokens = self.special_tokens.values().filter_map(Value::as_str).filter(|token| !token.is_empty());
        for known in said.into_iter().chain(tokens) {
            rest = rest.replace(known, "");
        }
        !rest.trim().is_empty()
    }
}

/// Why a conversation cannot be made a prompt, in the template's own words where it has any.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(String);

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

    fn template(text: &str) -> ChatTemplate {
        let settings = serde_json::from_str(r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#).unwrap();
        ChatTemplate::new(text.into(), &settings).unwrap()
    }

    fn rendered(text: &str, message: Message) -> Result<String, String> {
        template(text).render(&[message], &RenderOptions::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn special_tokens_and_python_methods_are_there() {
        let text = "{{ bos_token }}{% for m in messages %}[{{ m['role'].upper() }}] {{ m.content.strip() }}{{ eos_token }}{% endfor %}";
        assert_eq!(rendered(text, Message::new("user", " hi ")), Ok("<s>[USER] hi</s>".into()));
    }

    #[test]
    fn contents_are_not_executed() {
        for content in ["{{ 7 * 7 }}", "{% for i in range(9) %}x{% endfor %}", "{# gone #}", "<b>&amp;</b>"] {
            let text = "{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}";
            assert_eq!(rendered(text, Message::new("user", content)), Ok(format!("{content}>")));
        }
    }

    #[test]
    fn exceptions_and_endless_templates_are_errors() {
        let picky = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with a user') }}{% endif %}";
        assert_eq!(rendered(picky, Message::new("system", "x")), Err("begin with a user".into()));
        let endless = "{% for i in range(10000) %}{% for j in range(10000) %}x{% endfor %}{% endfor %}";
        assert!(rendered(endless, Message::new("user", "x")).is_err());
        assert!(ChatTemplate::new("{% if %}".into(), &Map::new()).is_err());
    }

    #[test]
    fn roles_are_marked_or_not() {
        let marked = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
        assert!(template(marked).marks_roles());
        let joined = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}\n{% endfor %}";
        assert!(!template(joined).marks_roles());
        let bundled = ChatTemplate::of_model(&ModelFiles::bundled(), None).unwrap().unwrap();
        assert!(!bundled.marks_roles());
    }
}
