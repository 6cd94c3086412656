//! The fields that determine how messages become a prompt. Chats and requests to count a chat's tokens share them.

use engine::tools::chat::{Arguments, ChatTemplate, Message, MessageProblem, RenderOptions, Value};

use crate::app::App;
use crate::error::{ApiError, check};
use crate::text::Encoded;

/// Maximum messages in a conversation.
const MAX_MESSAGES: usize = 4096;
/// Conversations up to this length are rendered inline. Longer ones are rendered on a thread for blocking work, because
/// templates visit each message several times, and some visit each pair of messages.
const FEW_MESSAGES: usize = 16;
/// Template variables that `chat_template_kwargs` cannot set. They have their own fields or are not supported.
const RESERVED: [&str; 7] =
    ["messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"];

/// A conversation, and how to render it as a prompt.
#[derive(Debug, Default)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Message>,
    /// Whether the prompt ends with the beginning of an answer. Defaults to true.
    pub add_generation_prompt: Option<bool>,
    /// Whether the prompt ends within the last message.
    pub continue_final_message: Option<bool>,
    /// Additional variables for the template.
    pub chat_template_kwargs: Option<Arguments>,
    /// The tools that the model may call.
    pub tools: Option<Value>,
    /// Documents to answer from.
    pub documents: Option<Vec<Arguments>>,
    /// A template instead of the model's. It is refused, because templates are programs.
    pub chat_template: Option<String>,
    /// Whether to add the special tokens that the model expects around a text. Most templates write them already.
    pub add_special_tokens: Option<bool>,
    /// A variable for templates that use it.
    pub reasoning_effort: Option<String>,
    /// A variable for templates that use it.
    pub verbosity: Option<String>,
}

impl Conversation {
    /// Renders the prompt and returns its text and tokens, of which `most` are allowed. `field` is the field with the
    /// messages.
    ///
    /// # Errors
    /// 400 if the model has no template, the template rejects the messages, or a field is not supported.
    pub async fn prompt(self, app: &App, field: &str, most: Option<usize>) -> Result<Encoded, ApiError> {
        let template = app.template.as_ref().ok_or_else(|| {
            ApiError::field(field, "this model has no chat template: start the server with --chat-template")
        })?;
        check((1..=MAX_MESSAGES).contains(&self.messages.len()), field, || {
            format!("there must be between 1 and {MAX_MESSAGES} messages")
        })?;
        for (index, message) in self.messages.iter().enumerate() {
            if let Some(MessageProblem { place, what }) = message.problem() {
                let place = format!("{field}[{index}].{place}");
                return Err(ApiError::field(place.clone(), format!("{place}: {what}")));
            }
        }
        let special = self.add_special_tokens.unwrap_or(false);
        let (messages, options) = self.rendering(template)?;
        let text = if messages.len() <= FEW_MESSAGES {
            template.render(&messages, &options)
        } else {
            let template = template.clone();
            let render = move || template.render(&messages, &options);
            tokio::task::spawn_blocking(render).await.map_err(|e| ApiError::internal(e.to_string()))?
        };
        let text =
            text.map_err(|why| ApiError::field(field, format!("the model's chat template fails on them: {why}")))?;
        let prompt = app.texts.encode(field, vec![text], special, most).await?.pop().unwrap_or_default();
        check(!prompt.1.is_empty(), field, || "the prompt must have at least one token".into())?;
        Ok(prompt)
    }

    /// Returns the messages and the options for rendering them.
    fn rendering(self, template: &ChatTemplate) -> Result<(Vec<Message>, RenderOptions), ApiError> {
        check(self.chat_template.is_none(), "chat_template", || {
            "chat_template is not supported: the template is set when the server starts".into()
        })?;
        let documents = self.documents.filter(|documents| !documents.is_empty());
        check(documents.is_none() || template.reads("documents"), "documents", || {
            "the model's chat template does not support documents".into()
        })?;
        let mut arguments = self.chat_template_kwargs.unwrap_or_default();
        if let Some(name) = arguments.names().find(|name| RESERVED.contains(name)) {
            let field = format!("chat_template_kwargs.{name}");
            return Err(ApiError::field(field, format!("{name} cannot be among chat_template_kwargs")));
        }
        for (name, value) in [("reasoning_effort", self.reasoning_effort), ("verbosity", self.verbosity)] {
            if let Some(value) = value
                && arguments.names().all(|other| other != name)
            {
                arguments.push(name, value);
            }
        }
        let continues = self.continue_final_message.unwrap_or(false);
        check(!(continues && self.add_generation_prompt == Some(true)), "continue_final_message", || {
            "continue_final_message and add_generation_prompt exclude each other".into()
        })?;
        let documents = documents.map(|all| all.into_iter().map(Value::from_iter).collect());
        let options = RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            tools: self.tools,
            documents,
            arguments,
            ..RenderOptions::default()
        };
        Ok((self.messages, options))
    }
}
