//! The output of a response: its items, and the events that stream them.

use engine::tools::answer::Part;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::answer_form::AnswerForm;
use crate::api::message::call_id;

/// An item of a response's output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item {
    Message { id: String, status: &'static str, role: &'static str, content: Vec<Text> },
    Reasoning { id: String, status: &'static str, summary: [(); 0], content: Vec<Text> },
    FunctionCall { id: String, status: &'static str, call_id: String, name: String, arguments: String },
}

/// The single part of a message or of reasoning.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Text {
    OutputText { text: String, annotations: [(); 0], logprobs: [(); 0] },
    ReasoningText { text: String },
}

/// An event of a stream: its name and its fields.
#[derive(Debug)]
pub struct OutputEvent(pub &'static str, pub Value);

/// An output under construction.
#[derive(Clone, Debug)]
pub struct ResponseOutput {
    form: AnswerForm,
    items: Vec<Item>,
    /// Whether the last item may still grow.
    is_open: bool,
}

/// The kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
}

impl Item {
    fn id(&self) -> &str {
        match self {
            Item::Message { id, .. } | Item::Reasoning { id, .. } | Item::FunctionCall { id, .. } => id,
        }
    }

    fn status(&mut self) -> &mut &'static str {
        match self {
            Item::Message { status, .. } | Item::Reasoning { status, .. } | Item::FunctionCall { status, .. } => status,
        }
    }

    /// Returns the text parts of an item of kind `wanted`. `None` for other items.
    fn parts(&mut self, wanted: Kind) -> Option<&mut Vec<Text>> {
        match (self, wanted) {
            (Item::Message { content, .. }, Kind::Message) | (Item::Reasoning { content, .. }, Kind::Reasoning) => {
                Some(content)
            }
            _ => None,
        }
    }
}

impl Text {
    fn text(&mut self) -> &mut String {
        match self {
            Text::OutputText { text, .. } | Text::ReasoningText { text } => text,
        }
    }
}

impl ResponseOutput {
    /// Creates an empty output.
    pub fn new(form: AnswerForm) -> Self {
        ResponseOutput { form, items: Vec::new(), is_open: false }
    }

    /// Returns the items so far.
    pub fn items(&self) -> Value {
        json!(self.items)
    }

    /// Returns the reasoning text.
    pub fn thoughts(&mut self) -> String {
        let parts = self.items.iter_mut().filter_map(|item| item.parts(Kind::Reasoning));
        parts.flatten().map(|part| part.text().as_str()).collect()
    }

    /// Adds text and returns the events for it.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let parts = self.form.push(text);
        self.take(parts)
    }

    /// Whether the answer ended before the output. See [`AnswerForm::is_over`].
    pub fn is_over(&self) -> bool {
        self.form.is_over()
    }

    /// Ends the output and returns the last events. If `is_cut`, the last item is marked incomplete.
    pub fn finish(&mut self, is_cut: bool) -> Vec<OutputEvent> {
        let parts = self.form.finish();
        let mut events = self.take(parts);
        if self.items.is_empty() {
            events.extend(self.say(Kind::Message, ""));
        }
        events.extend(self.close(if is_cut && !self.is_over() { "incomplete" } else { "completed" }));
        events
    }

    fn take(&mut self, parts: Vec<Part>) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        for part in parts {
            events.extend(match part {
                Part::Text(text) => self.say(Kind::Message, &text),
                Part::Thought(text) => self.say(Kind::Reasoning, &text),
                Part::Call(name) => self.call(name),
                Part::Arguments(more) => self.argue(&more),
            });
        }
        events
    }

    /// Appends to a text of kind `kind`. Begins a new item if the last one is of another kind.
    fn say(&mut self, kind: Kind, more: &str) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        let goes_on = self.is_open && self.items.last_mut().is_some_and(|item| item.parts(kind).is_some());
        if !goes_on {
            let (status, content) = ("in_progress", Vec::new());
            let item = match kind {
                Kind::Message => Item::Message { id: name("msg"), status, role: "assistant", content },
                Kind::Reasoning => Item::Reasoning { id: name("rs"), status, summary: [], content },
            };
            events = self.begin(item);
            let text = String::new();
            let part = match kind {
                Kind::Message => Text::OutputText { text, annotations: [], logprobs: [] },
                Kind::Reasoning => Text::ReasoningText { text },
            };
            events.push(self.event("response.content_part.added", json!({"content_index": 0, "part": part})));
            self.items.last_mut().and_then(|item| item.parts(kind)).into_iter().for_each(|all| all.push(part.clone()));
        }
        let part = self.items.last_mut().and_then(|item| item.parts(kind)?.last_mut());
        part.into_iter().for_each(|part| part.text().push_str(more));
        if !more.is_empty() {
            events.push(match kind {
                Kind::Message => {
                    let fields = json!({"content_index": 0, "delta": more, "logprobs": []});
                    self.event("response.output_text.delta", fields)
                }
                Kind::Reasoning => {
                    self.event("response.reasoning_text.delta", json!({"content_index": 0, "delta": more}))
                }
            });
        }
        events
    }

    fn call(&mut self, function: String) -> Vec<OutputEvent> {
        let (id, call_id, arguments) = (name("fc"), call_id(self.form.format), String::new());
        self.begin(Item::FunctionCall { id, status: "in_progress", call_id, name: function, arguments })
    }

    fn argue(&mut self, more: &str) -> Vec<OutputEvent> {
        let Some(Item::FunctionCall { arguments, .. }) = self.items.last_mut() else { return Vec::new() };
        arguments.push_str(more);
        vec![self.event("response.function_call_arguments.delta", json!({"delta": more}))]
    }

    fn begin(&mut self, item: Item) -> Vec<OutputEvent> {
        let mut events = self.close("completed");
        self.items.push(item);
        self.is_open = true;
        let (item, at) = (json!(self.items.last()), self.items.len() - 1);
        events.push(OutputEvent("response.output_item.added", json!({"output_index": at, "item": item})));
        events
    }

    /// Ends the last item if it is still open.
    fn close(&mut self, status: &'static str) -> Vec<OutputEvent> {
        if !std::mem::take(&mut self.is_open) {
            return Vec::new();
        }
        let Some(item) = self.items.last_mut() else { return Vec::new() };
        *item.status() = status;
        let mut events = match item.clone() {
            Item::FunctionCall { name, arguments, .. } => {
                let fields = json!({"name": name, "arguments": arguments});
                vec![self.event("response.function_call_arguments.done", fields)]
            }
            Item::Message { content, .. } => self.texts_done("response.output_text.done", content),
            Item::Reasoning { content, .. } => self.texts_done("response.reasoning_text.done", content),
        };
        let (item, at) = (json!(self.items.last()), self.items.len() - 1);
        events.push(OutputEvent("response.output_item.done", json!({"output_index": at, "item": item})));
        events
    }

    fn texts_done(&self, name: &'static str, parts: Vec<Text>) -> Vec<OutputEvent> {
        let done = |mut part: Text| {
            let mut fields = json!({"content_index": 0, "text": part.text()});
            if let Text::OutputText { .. } = part {
                fields["logprobs"] = json!([]);
            }
            let part = json!({"content_index": 0, "part": part});
            [self.event(name, fields), self.event("response.content_part.done", part)]
        };
        parts.into_iter().flat_map(done).collect()
    }

    /// Returns an event about the last item.
    fn event(&self, name: &'static str, mut fields: Value) -> OutputEvent {
        fields["item_id"] = json!(self.items.last().map(Item::id));
        fields["output_index"] = json!(self.items.len().saturating_sub(1));
        OutputEvent(name, fields)
    }
}

/// Returns a new item id.
fn name(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}
