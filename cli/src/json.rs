//! The output format of `--json`.

use engine::FinishReason;
use engine::{Completion, Continuation};
use serde_json::{Value, json};

/// Returns the JSON of a prompt and its outputs. `index` is the prompt's position and `model` the model's name.
pub fn completion(c: &Completion, index: usize, model: &str) -> Value {
    let generated: usize = c.outputs.iter().map(|o| o.tokens.len()).sum();
    json!({
        "index": index,
        "model": model,
        "prompt": c.prompt,
        "prompt_token_ids": c.prompt_tokens,
        "outputs": c.outputs.iter().enumerate().map(|(i, o)| output(i, o)).collect::<Vec<_>>(),
        "usage": {
            "prompt_tokens": c.prompt_tokens.len(),
            "completion_tokens": generated,
            "total_tokens": c.prompt_tokens.len() + generated,
        },
    })
}

fn output(index: usize, o: &Continuation) -> Value {
    let mut value = json!({
        "index": index,
        "text": o.text,
        "token_ids": o.tokens,
        "finish_reason": reason(o.finish_reason),
        "cumulative_logprob": o.cumulative_logprob,
    });
    if let Some(score) = o.score {
        value["score"] = json!(score);
    }
    if let Some(logprobs) = &o.logprobs {
        let entry = |l: &engine::TokenLogprob| json!({"token_id": l.token, "logprob": l.logprob, "top": l.top});
        value["logprobs"] = logprobs.iter().map(entry).collect();
    }
    value
}

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
