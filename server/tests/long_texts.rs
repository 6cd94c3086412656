//! Texts of several megabytes: their memory use, and how early they are refused.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::path::Path;

use common::{PROMPT, TestServer};
use engine::ModelFiles;
use engine::Options;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use server::ServeOptions;
use tokio::sync::Mutex;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The tests in this file measure the memory of the process, so they must run one at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

const MIB: usize = 1 << 20;
const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// Each word is at least one token.
const WORDS: &str = "x y z ";

/// Returns the minimum number of tokens that a refusal reports for a prompt.
fn least(error: &Value) -> usize {
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let number = message.strip_suffix(" tokens or more").and_then(|rest| rest.rsplit(' ').next());
    number.unwrap_or_else(|| panic!("{message}")).parse().unwrap()
}

/// The bundled model's longest token, " strawberries", has 13 bytes, so the length alone shows that the prompt is too
/// long.
#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_by_its_length() {
    let _alone = ALONE.lock().await;
    let server = TestServer::start().await;
    let text = WORDS.repeat(650_001);
    let by_length = text.len().div_ceil(13);
    let bodies = [
        (COMPLETIONS, json!({"prompt": text}), "prompt"),
        (COMPLETIONS, json!({"prompt": [PROMPT, text]}), "prompt"),
        (CHAT, json!({"messages": [{"role": "user", "content": text}]}), "messages"),
    ];
    for (path, body, param) in bodies {
        let error = server.refused(path, &body, 400).await;
        assert_eq!((least(&error), &error["param"]), (by_length, &json!(param)), "{path}");
    }
    // A list with too many token ids is refused without looking at them.
    let error = server.refused(COMPLETIONS, &json!({"prompt": vec![300; 600_000]}), 400).await;
    assert_eq!(least(&error), 600_000);
    server.assert_unharmed().await;
}

/// If the tokenizer may join characters, lengths are no proof. Tokenization then stops when there are too many tokens.
#[tokio::test]
async fn a_prompt_is_tokenized_as_far_as_it_could_fit() {
    let _alone = ALONE.lock().await;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden");
    let files = ModelFiles::directory(golden.join("qwen2")).unwrap();
    let server = TestServer::with(&files, &Options::default(), ServeOptions::default()).await;
    let error = server.refused(COMPLETIONS, &json!({"prompt": WORDS.repeat(500_000)}), 400).await;
    let least = least(&error);
    assert!((1025..50_000).contains(&least), "{least} tokens of more than 1,500,000");
}

/// Tokenizes four texts of 1.5 MB at once. A text of 4 MB once took a gigabyte. Their memory must be freed afterwards.
#[tokio::test]
async fn long_texts_take_little_memory() {
    let _alone = ALONE.lock().await;
    const REPEATS: u64 = 250_000;
    let server = TestServer::start().await;
    let text = WORDS.repeat(REPEATS as usize);
    let count = async |times: usize| {
        server.post("/tokenize", &json!({"prompt": WORDS.repeat(times)})).await["count"].as_u64().unwrap()
    };
    let (hundred, thousand) = (count(100).await, count(1000).await);
    let body = json!({"prompt": text}).to_string();
    drop(text);
    let ask = || {
        let request = server.client.post(server.url("/tokenize")).header("content-type", "application/json");
        let sent = request.body(body.clone()).send();
        async move {
            // Parsing the whole answer would take more memory than this test measures.
            let answer = sent.await.unwrap().text().await.unwrap();
            let count = answer.strip_prefix("{\"count\":").unwrap().split(',').next().unwrap();
            count.parse::<u64>().unwrap()
        }
    };
    let one = ask().await;
    assert_eq!(one - hundred, (REPEATS - 100) * ((thousand - hundred) / 900));
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..4 {
        asked.spawn(ask());
    }
    assert_eq!(asked.join_all().await, [one; 4]);
    // This includes the client's bodies and answers in the same process: about 12 MiB per request with the server's.
    let peak = (ALLOCATOR.peak_usage() - before) / MIB;
    assert!(peak < 100, "{peak} MiB");
    server.assert_unharmed().await;
    let left = ALLOCATOR.current_usage().saturating_sub(before) / MIB;
    assert!(left < 16, "{left} MiB are left");
}
