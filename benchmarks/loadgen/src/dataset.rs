//! The published data sets of the paper: prompts and answers as texts.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A data set in its published file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataset {
    /// Conversations between people and ChatGPT: a list of objects with `conversations`, whose turns have `from` and
    /// `value`.
    ShareGpt,
    /// Instructions and answers: a list of objects with `instruction`, `input` and `output`.
    Alpaca,
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPair {
    /// The question.
    pub prompt: String,
    /// The answer.
    pub output: String,
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(default)]
    conversations: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    #[serde(default)]
    from: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
struct Instruction {
    instruction: String,
    #[serde(default)]
    input: String,
    output: String,
}

impl Dataset {
    /// Parses the requests in the text of the data set's file. A conversation gives its first question by a person and
    /// the answer.
    ///
    /// # Errors
    /// If the text does not have the data set's form, or contains no request.
    pub fn pairs(self, text: &str) -> Result<Vec<TextPair>> {
        let pairs: Vec<TextPair> = match self {
            Dataset::ShareGpt => {
                let all: Vec<Conversation> = serde_json::from_str(text).context("not ShareGPT's form")?;
                all.into_iter().filter_map(Conversation::first).collect()
            }
            Dataset::Alpaca => {
                let all: Vec<Instruction> = serde_json::from_str(text).context("not Alpaca's form")?;
                all.into_iter().map(Instruction::pair).collect()
            }
        };
        ensure!(!pairs.is_empty(), "no question with an answer");
        Ok(pairs)
    }
}

impl Conversation {
    /// Returns the first question by a person that has an answer.
    fn first(self) -> Option<TextPair> {
        let is_person = |turn: &Turn| matches!(turn.from.as_str(), "human" | "user");
        let at = self.conversations.windows(2).position(|turns| is_person(&turns[0]) && !is_person(&turns[1]))?;
        let mut turns = self.conversations.into_iter().skip(at).map(|turn| turn.value);
        Some(TextPair { prompt: turns.next()?, output: turns.next()? })
    }
}

impl Instruction {
    fn pair(self) -> TextPair {
        let prompt =
            if self.input.is_empty() { self.instruction } else { format!("{}\n{}", self.instruction, self.input) };
        TextPair { prompt, output: self.output }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn the_first_question_of_a_person_is_taken_with_its_answer() {
        let text = r#"[{"id": "1", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
            {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]}, {"id": "2", "conversations": []},
            {"id": "3", "conversations": [{"from": "gpt", "value": "d"}]}]"#;
        let pair = TextPair { prompt: "a".into(), output: "b".into() };
        assert_eq!(Dataset::ShareGpt.pairs(text).unwrap(), [pair]);
        assert!(Dataset::ShareGpt.pairs("[]").is_err() && Dataset::Alpaca.pairs(text).is_err());
    }

    #[test]
    fn an_instruction_is_asked_with_its_input() {
        let text =
            r#"[{"instruction": "Add", "input": "1 and 2", "output": "3"}, {"instruction": "Hi", "output": "Ho"}]"#;
        let pairs = Dataset::Alpaca.pairs(text).unwrap();
        assert_eq!(pairs[0], TextPair { prompt: "Add\n1 and 2".into(), output: "3".into() });
        assert_eq!(pairs[1], TextPair { prompt: "Hi".into(), output: "Ho".into() });
    }
}
