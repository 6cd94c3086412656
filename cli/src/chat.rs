//! Turns prompts into chat messages with a chat template.

use anyhow::{Context, Result};
use engine::ModelFiles;
use engine::Prompt;
use engine::tools::chat::{ChatTemplate, Message, RenderOptions};
use engine::tools::tokenizer::Tokenizer;

use crate::args::Args;
use crate::words::UsageError;

/// A chat template and the system message to use with it.
pub struct Chat {
    template: ChatTemplate,
    system: Option<String>,
}

impl Chat {
    /// Returns how to turn prompts into messages, or `None` to continue them as plain text. Without options, prompts
    /// for a chat model become messages, and a note on standard error says so.
    ///
    /// # Errors
    /// If options contradict each other, or if chat is requested but there is no usable template.
    pub fn from_args(args: &Args, files: &ModelFiles) -> Result<Option<Self>> {
        let asked = args.chat || args.chat_template.is_some() || args.system.is_some();
        if asked && args.raw {
            return Err(
                UsageError::new("--raw cannot be combined with --chat, --chat-template or --system".into()).into()
            );
        }
        if asked && !args.prompt_ids.is_empty() {
            return Err(UsageError::new(
                "--prompt-ids cannot be combined with --chat, --chat-template or --system".into(),
            )
            .into());
        }
        if !asked {
            return Ok(if args.raw { None } else { Self::by_default(args, files) });
        }
        let other = args.chat_template.as_deref().map(template_file).transpose()?;
        let template = ChatTemplate::of_model(files, other.as_deref())?.ok_or_else(|| {
            UsageError::new(format!("{} has no chat template; give one with --chat-template", files.name()))
        })?;
        Ok(Some(Chat { template, system: args.system.clone() }))
    }

    fn by_default(args: &Args, files: &ModelFiles) -> Option<Self> {
        let is_text = args.prompts.is_none() && args.prompt_ids.is_empty() && args.beam_width.is_none();
        if !is_text || files.name() == ModelFiles::bundled().name() {
            return None;
        }
        match ChatTemplate::of_model(files, None) {
            Ok(template) => {
                let template = template.filter(ChatTemplate::marks_roles)?;
                eprintln!(
                    "note: the prompt becomes a user's message in the model's chat template (--raw prevents this)"
                );
                Some(Chat { template, system: None })
            }
            Err(error) => {
                eprintln!(
                    "note: the prompt is continued as plain text, because the chat template cannot be used: {error}"
                );
                None
            }
        }
    }

    /// Turns a text into a prompt that asks for an answer to it. A prompt of token ids is returned unchanged.
    ///
    /// # Errors
    /// If the template refuses the message.
    pub fn prompt(&self, prompt: Prompt, tokenizer: &Tokenizer) -> Result<Prompt> {
        let Prompt::Text(message) = prompt else { return Ok(prompt) };
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain([Message::new("user", message)]).collect();
        let text = self.template.render(&messages, &RenderOptions::default());
        let text = text.context("the chat template refuses the message")?;
        // The template already wrote the special tokens.
        let tokens = tokenizer.encode_plain(&text)?;
        Ok(Prompt::Encoded { text, tokens })
    }
}

/// Reads a chat template from a file.
///
/// # Errors
/// If the file cannot be read.
pub fn template_file(file: &str) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read the chat template in {file}"))
}
