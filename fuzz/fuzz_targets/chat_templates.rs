//! Fuzzes chat templates. The input is a template, a zero byte, and the messages as JSON.

#![no_main]

use std::sync::LazyLock;

use engine::ModelFiles;
use engine::tools::chat::{ChatTemplate, Message, RenderOptions};
use libfuzzer_sys::fuzz_target;

static FILES: LazyLock<ModelFiles> = LazyLock::new(ModelFiles::bundled);

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else { return };
    let (template, messages) = text.split_once('\0').unwrap_or((text, ""));
    let Ok(Some(template)) = ChatTemplate::of_model(&FILES, Some(template)) else { return };
    let messages = serde_json::from_str(messages).unwrap_or_else(|_| vec![Message::new("user", "Hello!")]);
    let options = RenderOptions { now: Some(Default::default()), ..RenderOptions::default() };
    let first = template.render(&messages, &options);
    assert_eq!(first, template.render(&messages, &options), "a rendering depends only on its input");
});
