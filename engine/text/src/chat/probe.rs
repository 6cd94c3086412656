//! Finds out which forms a template expects, by rendering samples of each form when the template is loaded.

use minijinja::Value;

use super::forms::{ArgumentsForm, EmptyContent, Forms};
use super::message::{Content, Message};

/// Texts that occur in no template and need no escaping.
const PROBES: [&str; 2] = ["quireprobe", "quiresecond"];
/// Function names that occur in no template and need no escaping.
const FUNCTIONS: [&str; 2] = ["quirecalled", "quireasked"];
/// Ids of calls. Mistral's templates require nine letters and digits.
const CALL_IDS: [&str; 2] = ["quire0001", "quire0002"];

impl Forms {
    /// Finds out the forms of a template. `render` renders messages, and returns `None` if that fails.
    pub(super) fn probe(render: impl Fn(&[Message], &Forms) -> Option<String>) -> Self {
        let mut forms = Forms::default();
        ["system", "developer", "user", "assistant"].into_iter().for_each(|role| forms.find_parts(role, &render));
        forms.find_calls(&render);
        // Tool messages answer calls, so the forms of calls must be known first.
        forms.find_parts("tool", &render);
        forms
    }

    /// Finds out whether the template reads the contents of `role` as parts.
    fn find_parts(&mut self, role: &str, render: impl Fn(&[Message], &Forms) -> Option<String>) {
        let shows = |content: Content, forms: &Forms| {
            let text = render(&conversation(role, content), forms).unwrap_or_default();
            // The text must occur as content, and not within a printed list.
            let says = |probe: &str| {
                let printed = [format!("'{probe}'"), format!("\"{probe}\"")];
                text.contains(probe) && !printed.iter().any(|printed| text.contains(printed))
            };
            PROBES.into_iter().all(says)
        };
        let mut in_parts = self.clone();
        in_parts.roles_in_parts.push(role.into());
        if shows(Content::Parts(PROBES.map(String::from).into()), &in_parts) {
            if !shows(Content::Text(PROBES.join(" ")), self) {
                in_parts.roles_only_in_parts.push(role.into());
            }
            *self = in_parts;
        }
    }

    /// Finds out how the template reads function calls.
    fn find_calls(&mut self, render: impl Fn(&[Message], &Forms) -> Option<String>) {
        let conversation = |calls: usize| {
            let mut messages = vec![Message::new("user", "x"), message_with_calls(calls)];
            messages.extend((0..calls).map(|call| as_result(Message::new("tool", "x"), call)));
            messages
        };
        let shows = |calls: usize, forms: &Forms| {
            let text = render(&conversation(calls), forms)?;
            Some(FUNCTIONS[..calls].iter().all(|function| text.contains(function)))
        };
        let candidates =
            [EmptyContent::Absent, EmptyContent::Null, EmptyContent::Empty].into_iter().flat_map(|empty_content| {
                [ArgumentsForm::Object, ArgumentsForm::Text].map(|arguments| (empty_content, arguments))
            });
        let outcomes: Vec<_> = candidates
            .filter_map(|(empty_content, arguments)| {
                let forms = Forms { empty_content, arguments, ..self.clone() };
                Some((shows(1, &forms)?, forms))
            })
            .collect();
        // Prefer a form that shows the call, or else one that renders at all.
        match outcomes.iter().find(|(shows, _)| *shows).or(outcomes.first()) {
            Some((is_shown, forms)) => {
                let one_call_only = *is_shown && shows(2, forms) != Some(true);
                *self = Forms { one_call_only, ..forms.clone() };
            }
            // If the template refuses every form, use vLLM's.
            None => self.empty_content = EmptyContent::Empty,
        }
    }
}

/// Creates a conversation in which `role` has `content`.
fn conversation(role: &str, content: Content) -> Vec<Message> {
    let user = || Message::new("user", "x");
    let said = Message { content: Some(content), ..Message::new(role, "") };
    match role {
        "system" | "developer" => vec![said, user()],
        "assistant" => vec![user(), said, user()],
        "tool" => vec![user(), message_with_calls(1), as_result(said, 0)],
        _ => vec![said],
    }
}

/// Creates a message with this number of calls and no content.
fn message_with_calls(calls: usize) -> Message {
    let call = |(name, id): (&str, &str)| {
        let arguments = Value::from_iter([("x", 1)]);
        let function = Value::from_iter([("name", Value::from(name)), ("arguments", arguments)]);
        Value::from_iter([("id", id.into()), ("type", "function".into()), ("function", function)])
    };
    let tool_calls = FUNCTIONS.into_iter().zip(CALL_IDS).take(calls).map(call).collect();
    Message { content: None, tool_calls, ..Message::new("assistant", "") }
}

/// Makes the message the result of the call with this index.
fn as_result(mut message: Message, call: usize) -> Message {
    message.others.extend([("tool_call_id".into(), CALL_IDS[call].into()), ("name".into(), FUNCTIONS[call].into())]);
    message
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::super::program::{Inputs, Program};
    use super::*;

    fn forms(template: &str) -> Forms {
        let program = Program::new(template).unwrap();
        Forms::probe(|messages, forms| {
            let messages: Vec<Value> = messages.iter().map(|message| message.value(forms)).collect();
            let variables = minijinja::context! { messages };
            program.render(|| Inputs { variables, weighed: Vec::new() }).ok()
        })
    }

    #[test]
    fn contents_are_read_whole_or_in_parts() {
        let whole = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
        assert_eq!(forms(whole), Forms::default());
        let users = "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}\
            {% for part in m.content %}{{ part.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(forms(users), Forms { roles_in_parts: vec!["user".into()], ..Forms::default() });
        let only = "{% for m in messages %}{% for part in m.content %}{{ part['text'] }}{% endfor %}{% endfor %}";
        let all: Vec<String> = ["system", "developer", "user", "assistant", "tool"].map(String::from).into();
        let in_parts = Forms { roles_in_parts: all.clone(), roles_only_in_parts: all, ..Forms::default() };
        assert_eq!(forms(only), in_parts);
        // A list that is only printed does not count as read.
        let printed = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}";
        assert_eq!(forms(printed), Forms { empty_content: EmptyContent::Null, ..Forms::default() });
    }

    #[test]
    fn calls_have_the_form_that_the_template_shows() {
        let calls = |content: &str, arguments: &str| {
            forms(&format!(
                "{{% for m in messages %}}{content}{{% for c in m.tool_calls %}}{{{{ c.function.name + {arguments} }}}}\
                 {{% endfor %}}{{% endfor %}}"
            ))
        };
        let object = "(c.function.arguments | tojson)";
        assert_eq!(calls("", object), Forms::default());
        assert_eq!(calls("", "c.function.arguments").arguments, ArgumentsForm::Text);
        let null = "{% if m.content is not none %}{{ m.content + '' }}{% endif %}";
        assert_eq!(calls(null, object), Forms { empty_content: EmptyContent::Null, ..Forms::default() });
        assert_eq!(
            calls("{{ m.content + '' }}", object),
            Forms { empty_content: EmptyContent::Empty, ..Forms::default() }
        );
        let first =
            "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}";
        assert_eq!(forms(first), Forms { one_call_only: true, ..Forms::default() });
        let refused = "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one!') }}{% endif %}";
        assert!(calls(refused, object).one_call_only);
    }
}
