//! A conversation, and the messages and commands that a person types.

use std::fs;

use anyhow::{Context, Result};
use engine::tools::answer::{AnswerReader, ThoughtFormat};
use engine::tools::chat::{ChatTemplate, Message, RenderOptions};
use serde_json::{Value, json};

/// The commands. Those with an argument end with a space.
pub const COMMANDS: [&str; 5] = ["/help", "/reset", "/save ", "/quit", "/exit"];

/// An entry that a person typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed<'a> {
    /// Only white space.
    Nothing,
    /// Lists the commands.
    Help,
    /// Starts the conversation over.
    Reset,
    /// Writes the conversation to a file.
    Save(&'a str),
    /// Ends the program.
    Quit,
    /// Looks like a command but is not one.
    Unknown(&'a str),
    /// A message for the model.
    Message(&'a str),
}

/// A conversation.
pub struct Talk {
    template: ChatTemplate,
    /// The format of the model's thoughts.
    thoughts: Option<ThoughtFormat>,
    system: Option<String>,
    /// The role and text of each message except the system message.
    said: Vec<(&'static str, String)>,
}

impl<'a> Typed<'a> {
    /// Classifies an entry.
    pub fn of(text: &'a str) -> Self {
        let text = text.trim();
        let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (command, rest.trim()) {
            ("", _) => Typed::Nothing,
            ("/help", "") => Typed::Help,
            ("/reset", "") => Typed::Reset,
            ("/quit" | "/exit", "") => Typed::Quit,
            ("/save", file) if !file.is_empty() => Typed::Save(file),
            _ if text.starts_with('/') => Typed::Unknown(text),
            _ => Typed::Message(text),
        }
    }
}

impl Talk {
    /// Starts a conversation without messages, except for the system message if there is one.
    pub fn new(template: ChatTemplate, system: Option<String>) -> Self {
        let thoughts = ThoughtFormat::of_template(|text| template.mentions(text));
        Talk { template, thoughts, system, said: Vec::new() }
    }

    /// Removes all messages except the system message.
    pub fn reset(&mut self) {
        self.said.clear();
    }

    /// Adds a message of the user.
    pub fn ask(&mut self, text: &str) {
        self.said.push(("user", text.into()));
    }

    /// Removes the user's last message.
    pub fn take_back(&mut self) {
        self.said.pop();
    }

    /// Adds an answer of the model.
    pub fn answered(&mut self, text: String) {
        self.said.push(("assistant", text));
    }

    /// Renders the conversation as the prompt that the model continues.
    ///
    /// # Errors
    /// If the template refuses the conversation.
    pub fn prompt(&self) -> Result<String> {
        let messages: Vec<Message> = self.messages().map(|(role, text)| Message::new(role, text)).collect();
        Ok(self.template.render(&messages, &RenderOptions::default())?)
    }

    /// Whether special tokens separate thoughts from text. Answers must then contain them.
    pub fn shows_special_tokens(&self) -> bool {
        self.thoughts.is_some_and(ThoughtFormat::shows_special_tokens)
    }

    /// Returns a reader that splits the answer to a prompt into thoughts and text.
    pub fn reader(&self, prompt: &str) -> AnswerReader {
        AnswerReader::new(None, Vec::new(), self.thoughts).after(prompt)
    }

    /// Writes the messages to a file, in the format of the chat API.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, file: &str) -> Result<()> {
        let messages: Value = self.messages().map(|(role, text)| json!({"role": role, "content": text})).collect();
        fs::write(file, format!("{messages:#}\n")).with_context(|| format!("cannot write {file}"))
    }

    fn messages(&self) -> impl Iterator<Item = (&str, &str)> {
        let system = self.system.iter().map(|text| ("system", text.as_str()));
        system.chain(self.said.iter().map(|(role, text)| (*role, text.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_completed_exists() {
        for command in COMMANDS {
            let typed = format!("{command}{}", if command.ends_with(' ') { "file" } else { "" });
            assert!(!matches!(Typed::of(&typed), Typed::Unknown(_) | Typed::Message(_)), "{command}");
        }
    }

    #[test]
    fn an_entry_is_a_message_or_a_command() {
        assert_eq!(Typed::of(" \t"), Typed::Nothing);
        assert_eq!(Typed::of("/help "), Typed::Help);
        assert_eq!(Typed::of("/reset"), Typed::Reset);
        assert_eq!(Typed::of("/save my file.json"), Typed::Save("my file.json"));
        assert_eq!(Typed::of("/save"), Typed::Unknown("/save"));
        assert_eq!([Typed::of("/quit"), Typed::of("/exit")], [Typed::Quit, Typed::Quit]);
        assert_eq!(Typed::of("/quit now"), Typed::Unknown("/quit now"));
        assert_eq!(Typed::of(" What is /help?\nTell me. "), Typed::Message("What is /help?\nTell me."));
    }
}
