//! What was said, and what is typed: messages and commands.

use std::fs;

use anyhow::{Context, Result};
use engine::answer::AnswerReader;
use engine::chat::{ChatTemplate, Message, RenderOptions};
use serde_json::{Value, json};

/// The commands, with a space after those that take more.
pub const COMMANDS: [&str; 5] = ["/help", "/reset", "/save ", "/quit", "/exit"];

/// What a person typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed<'a> {
    /// White space.
    Nothing,
    /// Asks what there is.
    Help,
    /// Begins anew.
    Reset,
    /// Writes the conversation to a file.
    Save(&'a str),
    /// Ends the program.
    Quit,
    /// Looks like a command, and is none.
    Unknown(&'a str),
    /// Something for the model.
    Message(&'a str),
}

/// A conversation.
pub struct Talk {
    template: ChatTemplate,
    system: Option<String>,
    /// Who said what, beside the system.
    said: Vec<(&'static str, String)>,
}

impl<'a> Typed<'a> {
    /// What `text` is.
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
    /// A conversation in which nothing was said but what the system says.
    pub fn new(template: ChatTemplate, system: Option<String>) -> Self {
        Talk { template, system, said: Vec::new() }
    }

    /// Forgets what was said.
    pub fn reset(&mut self) {
        self.said.clear();
    }

    /// The user says something.
    pub fn ask(&mut self, text: &str) {
        self.said.push(("user", text.into()));
    }

    /// Forgets what the user said last.
    pub fn take_back(&mut self) {
        self.said.pop();
    }

    /// The model has answered.
    pub fn answered(&mut self, text: String) {
        self.said.push(("assistant", text));
    }

    /// The text that the model is to continue.
    ///
    /// # Errors
    /// Why the template refuses the conversation.
    pub fn prompt(&self) -> Result<String> {
        let messages: Vec<Message> = self.messages().map(|(role, text)| Message::new(role, text)).collect();
        Ok(self.template.render(&messages, &RenderOptions::default())?)
    }

    /// What takes the answer to a prompt apart into thoughts and text.
    pub fn reader(&self, prompt: &str) -> AnswerReader {
        let thinks = self.template.mentions("</think>");
        let reader = AnswerReader::new(None, Vec::new(), thinks);
        if thinks && prompt.trim_end().ends_with("<think>") { reader.thinking() } else { reader }
    }

    /// Writes the messages to a file, in the form that servers take.
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
    fn what_is_typed_is_a_message_or_a_command() {
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
