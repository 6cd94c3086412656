//! Combines the grammars that a request asks for: calls of tools, a format of the text, and a constraint of the output.

use engine::tools::answer::{ThoughtFormat, ToolFormat};

use super::structured::Asked;
use super::tools::Calling;
use crate::app::App;
use crate::error::ApiError;

/// Returns the grammar of a conversation's answer with the field that requires it.
///
/// `format` is the form of the answer's text. With tools, an answer is a call or a text in this form. `constraint` applies
/// to the whole output, including calls.
///
/// # Errors
/// 400 that names a field, if two of them exclude each other or a schema is refused.
pub async fn answer_grammar(
    app: &App,
    calling: Option<&Calling>,
    format: Asked,
    constraint: Asked,
) -> Result<Asked, ApiError> {
    if let (Some((first, _)), Some((second, _))) = (&format, &constraint) {
        return Err(exclusive(first, second));
    }
    let Some(calling) = calling else { return Ok(format.or(constraint)) };
    if let Some(calls) = calling.grammar(app) {
        if let Some((field, _)) = constraint {
            return Err(ApiError::field(field, format!("{field} cannot be used if tool_choice requires a call")));
        }
        // The answer has no text, but a malformed schema is still refused.
        if let Some((field, text)) = format {
            app.grammars.compile(field, text).await?;
        }
        return Ok(Some(calls));
    }
    let Some((field, text)) = format else { return Ok(constraint) };
    // The grammar of gpt-oss's answers applies only to the final message, and calls are other messages.
    if calling.format == ToolFormat::Harmony && app.thoughts == Some(ThoughtFormat::Harmony) {
        return Ok(Some((field, text)));
    }
    // An error about this schema must name its field, so it is first compiled alone.
    app.grammars.compile(field, text.clone()).await?;
    let both = calling.grammar_or(&text, app).ok_or_else(|| {
        let why = "cannot be used with tools: this model writes calls as JSON objects in place of text";
        ApiError::field(field, format!("{field} {why}"))
    })?;
    Ok(Some(("tools", both)))
}

/// Returns the error that two fields of a request exclude each other.
pub fn exclusive(first: &str, second: &str) -> ApiError {
    ApiError::field(second, format!("{first} and {second} exclude each other"))
}
