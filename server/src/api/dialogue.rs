//! Turns a conversation into work for the engine and the form of its answer, for chats and responses.

use engine::Prompt;
use engine::tools::answer::{AnswerReader, ThoughtFormat, ToolFormat};
use engine::tools::constraint::Thoughts;

use super::answer::max_tokens;
use super::answer_form::AnswerForm;
use super::answer_grammar::answer_grammar;
use super::conversation::Conversation;
use super::decoding::{Decoding, Outputs};
use super::structured::Asked;
use super::tools::Calling;
use crate::app::{Admission, App};
use crate::error::ApiError;
use crate::worker::Work;

/// A conversation to answer, and the settings of the answer.
pub struct Dialogue {
    /// The messages and how to render them.
    pub conversation: Conversation,
    /// The tools that may be called, if any.
    pub calling: Option<Calling>,
    /// The shared decoding fields.
    pub decoding: Decoding,
    /// The name and value of the field that limits the answer's tokens.
    pub max_tokens: (&'static str, Option<usize>),
    /// An upper limit on the answer's tokens, if `max_tokens` has none. The context may leave room for fewer.
    pub at_most: Option<usize>,
    /// The number of most likely tokens to report, if any.
    pub logprobs: Option<usize>,
    /// The form of the answer's text.
    pub format: Asked,
    /// Whether reasoning is part of the answer.
    pub shows_thoughts: bool,
    /// The field that contains the conversation.
    pub field: &'static str,
}

impl Dialogue {
    /// Returns the engine's work and the form of its outputs.
    ///
    /// # Errors
    /// 400 that names the field, or 504 if the deadline passes.
    pub async fn work(self, app: &App, admission: &Admission) -> Result<(Work, AnswerForm), ApiError> {
        let Dialogue { conversation, calling, mut decoding, max_tokens: asked, logprobs, field, .. } = self;
        let context = app.config.max_positions;
        let (text, tokens) = conversation.prompt(app, field, Some(context)).await?;
        let max_tokens = max_tokens(app, asked, (field, tokens.len()), 1, self.at_most.unwrap_or(context))?;
        let stream = decoding.stream.unwrap_or(false);
        let (reader, thoughts) = reader(app, &text, calling.as_ref());
        let format = calling.as_ref().map(|calling| calling.format);
        if format.is_some_and(ToolFormat::shows_special_tokens)
            || app.thoughts.is_some_and(ThoughtFormat::shows_special_tokens)
        {
            decoding.skip_special_tokens.get_or_insert(false);
        }
        let constraint = decoding.take_constraint()?;
        let grammar = admission.within(answer_grammar(app, calling.as_ref(), self.format, constraint)).await??;
        let outputs = Outputs { max_tokens, logprobs, grammar, thoughts, ..Outputs::default() };
        let params = admission.within(decoding.params(app, outputs)).await??;
        let form = AnswerForm::new(reader, self.shows_thoughts);
        let form = match &calling {
            Some(calling) => form.with_calls(calling.format, calling.is_named, calling.is_parallel),
            None => form,
        };
        let prompts = vec![Prompt::Encoded { text, tokens }];
        Ok((Work { prompts, params, field, asked: asked.1.map(|_| asked.0), stream }, form))
    }
}

/// Returns the reader that splits answers to `prompt` into parts, and the reasoning that may come before the
/// constrained output.
fn reader(app: &App, prompt: &str, calling: Option<&Calling>) -> (AnswerReader, Thoughts) {
    let (format, names) = calling.map(|calling| (calling.format, calling.names())).unzip();
    let tools = calling.map_or(&[][..], |calling| calling.tools());
    let reader = AnswerReader::new(format, names.unwrap_or_default(), app.thoughts).with_tools(tools).after(prompt);
    // The grammar of Harmony's calls contains the thoughts.
    let is_forced = calling.is_some_and(|calling| calling.format == ToolFormat::Harmony && calling.is_forced());
    let thoughts = app.thoughts.filter(|_| !is_forced);
    let token = |text: &str| app.tokenizer.token_id(text);
    let thoughts = thoughts.map(|format| format.beginning(prompt, token, calling.is_some()));
    (reader, thoughts.unwrap_or_default())
}
