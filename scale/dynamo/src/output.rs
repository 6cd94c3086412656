//! The answer to a request, as a stream of tokens.

use dynamo_backend_common::{
    DynamoError, GenerateContext, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails, StopReason, TopLogprob,
    usage,
};
use engine::tools::sequence::{FinishReason, TokenLogprob};
use engine::{Completion, Event};
use futures_util::stream::BoxStream;
use server::worker::{Failure, Job};

/// Streams tokens as they arrive, then the reason for the end. Dropping the stream cancels the request.
pub fn outputs(
    mut job: Job,
    ctx: GenerateContext,
    prompt_tokens: usize,
    error: impl Fn(Failure) -> DynamoError + Send + 'static,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(async_stream::stream! {
        let mut sent = 0;
        loop {
            let update = tokio::select! {
                biased;
                () = ctx.stopped() => None,
                update = job.next() => Some(update),
            };
            match update {
                None => {
                    let usage = usage(count(prompt_tokens), count(sent));
                    yield Ok(LLMEngineOutput::cancelled().with_usage(usage));
                    return;
                }
                Some(Err(failure)) => {
                    yield Err(error(failure));
                    return;
                }
                Some(Ok(events)) => {
                    let output = output(events, &mut sent);
                    let ends = output.finish_reason.is_some();
                    yield Ok(output);
                    if ends {
                        return;
                    }
                }
            }
        }
    })
}

/// Converts the events of a step. `sent` counts the tokens sent so far.
fn output(events: Vec<(usize, Event)>, sent: &mut usize) -> LLMEngineOutput {
    let (mut tokens, mut logprobs, mut end) = (Vec::new(), Vec::new(), None);
    for (_, event) in events {
        match event {
            Event::Token { token, logprob, .. } => {
                tokens.push(token);
                logprobs.extend(logprob);
            }
            // Requests never ask for an echo, so this event does not occur.
            Event::Prompt { .. } => {}
            Event::Done(completion) => end = Some(completion),
        }
    }
    *sent += tokens.len();
    let mut output = LLMEngineOutput::default();
    if let Some(completion) = end {
        // The tokens of beams, and of the best of several outputs, are only known at the end.
        if let Some(first) = completion.outputs.first() {
            tokens.extend(first.tokens.iter().skip(*sent));
            logprobs.extend(first.logprobs.iter().flatten().skip(*sent).cloned());
            *sent = first.tokens.len();
        }
        output = finished(&completion);
    }
    if !logprobs.is_empty() {
        output.log_probs = Some(logprobs.iter().map(|at| f64::from(at.logprob)).collect());
        output.top_logprobs = Some(logprobs.iter().map(likeliest).collect());
    }
    output.with_tokens(tokens)
}

/// Converts the end of an answer, without its last tokens.
fn finished(completion: &Completion) -> LLMEngineOutput {
    let Some(first) = completion.outputs.first() else { return LLMEngineOutput::cancelled() };
    let mut output = match first.finish_reason {
        FinishReason::Stop => LLMEngineOutput::stop(),
        FinishReason::Length => LLMEngineOutput::length(),
        FinishReason::Abort => LLMEngineOutput::cancelled(),
    };
    output.stop_reason = first.stop_reason.clone().map(|reason| match reason {
        engine::StopReason::Text(text) => StopReason::String(text),
        engine::StopReason::Token(token) => StopReason::Int(token.into()),
    });
    let mut usage = usage(count(completion.prompt_tokens.len()), count(first.tokens.len()));
    let cached_tokens = Some(count(completion.cached_tokens));
    usage.prompt_tokens_details = Some(PromptTokensDetails { cached_tokens, ..PromptTokensDetails::default() });
    output.with_usage(usage)
}

/// Returns the likeliest tokens at a position. The frontend has the tokenizer and adds their texts.
fn likeliest(at: &TokenLogprob) -> Vec<TopLogprob> {
    let rank = |(index, &(token_id, logprob)): (usize, &(u32, f32))| TopLogprob {
        rank: count(index + 1),
        token_id,
        token: None,
        logprob: f64::from(logprob),
        bytes: None,
    };
    at.top.iter().enumerate().map(rank).collect()
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
