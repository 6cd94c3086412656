//! A model's chat template.

use minijinja::context;

use super::environment::strftime_now;
use super::forms::Forms;
use super::program::{Inputs, Program};
use super::{Message, MessageProblem, RenderOptions, program};
use checkpoint::error::{Error, Result};
use checkpoint::load::ModelFiles;

/// Maximum characters of an error message, which may come from the template.
const MAX_REASON: usize = 2_000;
/// Marker appended to a message that is to be continued, to find its end in the prompt.
const END_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Names of the special tokens that templates can read.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Turns conversations into prompts. Message contents are data, so Jinja code in them is never executed.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    /// Values of `bos_token` and the other special tokens.
    special_tokens: minijinja::Value,
    source: String,
    forms: Forms,
}

/// The reason why a conversation cannot be rendered, in the template's own words if it gives one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(String);

impl ChatTemplate {
    /// Loads a model's chat template, or uses `other` instead. Returns `None` if there is neither.
    ///
    /// # Errors
    /// If the template is not valid Jinja. Use [`ChatTemplate::check`] to test that it renders.
    pub fn of_model(files: &ModelFiles, other: Option<&str>) -> Result<Option<Self>> {
        let template = match other {
            Some(other) => Some(other.to_owned()),
            None => files.chat_template()?,
        };
        let Some(template) = template else { return Ok(None) };
        let settings = files.json_fields("tokenizer_config.json")?;
        // Older models list their special tokens here.
        let older = files.json_fields("special_tokens_map.json")?;
        let token = |name: &str| {
            let value = settings.get(name).filter(|value| !value.is_null()).or_else(|| older.get(name))?;
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.to_owned(), text.to_owned()))
        };
        Self::new(&template, SPECIAL_TOKENS.into_iter().filter_map(token).collect()).map(Some)
    }

    fn new(template: &str, special_tokens: minijinja::Value) -> Result<Self> {
        let invalid = |error| Error::Tokenizer(format!("the chat template is not valid: {error}"));
        let program = Program::new(template).map_err(invalid)?.within(program::PROBE);
        let source = template.to_owned();
        let forms = Forms::default();
        let mut template = ChatTemplate { program, special_tokens, source, forms };
        let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
        template.forms = Forms::probe(|messages, forms| template.render_as(messages, &options, forms).ok());
        template.program = template.program.within(program::FULL);
        Ok(template)
    }

    /// Whether the template reads this variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.program.reads(variable)
    }

    /// Whether the template shows all calls of a message with several. Llama 3 templates refuse such messages.
    pub fn takes_several_calls(&self) -> bool {
        !self.forms.one_call_only
    }

    /// Whether the template's source contains a text.
    pub fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// Renders the simplest conversation as a test.
    ///
    /// # Errors
    /// The reason, if the template refuses it. It will then refuse nearly every conversation.
    pub fn check(&self) -> Result<(), RenderError> {
        self.render(&[Message::new("user", "Hello!")], &RenderOptions::default()).map(drop)
    }

    /// Whether prompts show who says what. If they do not, the model was not made for conversations.
    pub fn marks_roles(&self) -> bool {
        let said = ["Is it so?", "It is.", "And why?"];
        let roles = ["user", "assistant", "user"];
        let messages: Vec<Message> = roles.into_iter().zip(said).map(|(role, text)| Message::new(role, text)).collect();
        let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
        let Ok(mut rest) = self.render(&messages, &options) else { return false };
        for text in said {
            rest = rest.replace(text, "");
        }
        for token in SPECIAL_TOKENS {
            let token = self.special_tokens.get_attr(token).unwrap_or_default();
            if let Some(token) = token.as_str().filter(|token| !token.is_empty()) {
                rest = rest.replace(token, "");
            }
        }
        !rest.trim().is_empty()
    }

    /// Renders the prompt for `messages`.
    ///
    /// # Errors
    /// The reason why the template refuses them, in its own words if it gives one.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, RenderError> {
        if !options.continue_final_message {
            return self.render_as(messages, options, &self.forms);
        }
        if options.add_generation_prompt {
            let why = "a prompt cannot both continue the last message (continue_final_message) and begin another \
                       (add_generation_prompt)";
            return Err(RenderError(why.into()));
        }
        self.render_to_be_continued(messages, options)
    }

    /// Renders the prompt up to the end of the last message's text.
    fn render_to_be_continued(&self, messages: &[Message], options: &RenderOptions) -> Result<String, RenderError> {
        let nothing = || RenderError("the last message has no text that could be continued".into());
        let mut messages = messages.to_vec();
        let last = messages.last_mut().and_then(|last| last.last_text(&self.forms)).ok_or_else(nothing)?;
        let said = last.trim().to_owned();
        last.push_str(END_TAG);
        let mut text = self.render_as(&messages, options, &self.forms)?;
        let end = text.rfind(END_TAG.trim_end()).filter(|_| self.mentions("content") && text.contains(&said));
        let Some(end) = end else {
            let why = "the chat template does not write all of the last message, so it cannot be continued";
            return Err(RenderError(why.into()));
        };
        let keeps_space = text[end..].starts_with(END_TAG);
        text.truncate(end);
        if !keeps_space {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    fn render_as(&self, messages: &[Message], options: &RenderOptions, forms: &Forms) -> Result<String, RenderError> {
        for (index, message) in messages.iter().enumerate() {
            if let Some(MessageProblem { place, what }) = message.problem() {
                return Err(RenderError(format!("messages[{index}].{place}: {what}")));
            }
        }
        let inputs = || {
            let messages: minijinja::Value = messages.iter().map(|message| message.value(forms)).collect();
            let RenderOptions { add_generation_prompt, tools, documents, .. } = options;
            let arguments: minijinja::Value = options.arguments.clone().into_iter().collect();
            let given = [Some(messages.clone()), tools.clone(), documents.clone(), Some(arguments.clone())];
            // Missing values are `None` and not undefined.
            let own = context! { messages, add_generation_prompt, tools, documents };
            let globals = context! { strftime_now => strftime_now(options.now) };
            let variables =
                context! { ..own, ..context! { ..arguments, ..context! { ..self.special_tokens.clone(), ..globals } } };
            Inputs { variables, weighed: given.into_iter().flatten().collect() }
        };
        self.program.render(inputs).map_err(|error| {
            let reason = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            let end = reason.char_indices().nth(MAX_REASON).map_or(reason.len(), |(end, _)| end);
            RenderError(reason[..end].to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate::new(text, [("bos_token", "<s>"), ("eos_token", "</s>")].into_iter().collect()).unwrap()
    }

    fn rendered(text: &str, message: Message) -> Result<String, String> {
        template(text).render(&[message], &RenderOptions::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn special_tokens_and_python_methods_exist() {
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
        assert!(ChatTemplate::new("{% if %}", ().into()).is_err());
    }

    #[test]
    fn arguments_are_not_unpacked() {
        for call in ["range(*x)", "dict(**y)", "'{}'.format(*x)"] {
            let text = format!("{{% set x = [1] %}}{{% set y = {{'a': 1}} %}}{{{{ {call} }}}}");
            let refused = ChatTemplate::new(&text, ().into());
            assert!(refused.is_err_and(|error| error.to_string().contains("unpacked")), "{call}");
        }
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
