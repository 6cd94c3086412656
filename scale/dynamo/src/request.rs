//! Converts Dynamo's requests to work for the engine.

use dynamo_backend_common::PreprocessedRequest;
use engine::Prompt;
use engine::tools::config::GenerationConfig;
use engine::tools::error::Refusal;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingOptions, SamplingParams};
use server::worker::Work;

/// Fields that clients may send in addition to the fields that Dynamo knows. They would change the answer.
const PASSED_THROUGH: [&str; 3] = ["allowed_token_ids", "bad_words_token_ids", "logprob_token_ids"];

/// Converts a request to work for the engine. Sampling options that the request leaves out come from the model's
/// `defaults`, and otherwise from OpenAI's.
///
/// # Errors
/// The first field that the engine does not support.
pub fn work(request: &PreprocessedRequest, defaults: &GenerationConfig) -> Result<Work, Refusal> {
    refuse_unknown(request)?;
    let (sampling, stop) = (&request.sampling_options, &request.stop_conditions);
    let beams = sampling.use_beam_search == Some(true);
    let width = sampling.best_of.map_or(1, usize::from);
    let length_penalty = sampling.length_penalty.unwrap_or(1.0);
    check(beams || length_penalty == 1.0, "length_penalty", "length_penalty can only be used with use_beam_search")?;
    check(sampling.top_k.is_none_or(|k| k >= -1), "top_k", "top_k must be -1, 0 or a number of tokens")?;
    let stop_tokens = [&stop.stop_token_ids, &stop.stop_token_ids_visible, &stop.stop_token_ids_hidden];
    let beam = beams.then_some(Beam { width, length_penalty, early_stopping: EarlyStopping::No });
    let mut stop_token_ids: Vec<u32> = stop_tokens.into_iter().flatten().flatten().copied().collect();
    // The frontend adds the tokens that end every sequence of the model. A beam search ends at them anyway, and allows
    // no others.
    stop_token_ids.retain(|token| !beams || !request.eos_token_ids.contains(token));
    let mut params = SamplingParams {
        best_of: if beams { 1 } else { width },
        // Without a limit, generate as many tokens as fit.
        max_tokens: stop.max_tokens.map_or(usize::MAX, |most| most as usize),
        min_tokens: stop.min_tokens.unwrap_or(0) as usize,
        ignore_eos: stop.ignore_eos.unwrap_or(false),
        stop: stop.stop.clone().unwrap_or_default(),
        stop_token_ids,
        presence_penalty: sampling.presence_penalty.unwrap_or(0.0),
        frequency_penalty: sampling.frequency_penalty.unwrap_or(0.0),
        // A seed is any 64 bits. A negative seed becomes the unsigned number with the same bits.
        seed: sampling.seed.map(|seed| seed as u64),
        skip_special_tokens: request.output_options.skip_special_tokens.unwrap_or(true),
        logprobs: request.output_options.logprobs.map(|k| k as usize),
        beam,
        ..SamplingParams::default()
    };
    let samples = defaults.do_sample == Some(true) || beams;
    let options = SamplingOptions {
        temperature: sampling.temperature.or((!samples).then_some(1.0)),
        top_k: sampling.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
    };
    options.apply(defaults, &mut params);
    Ok(Work {
        // The frontend keeps the text.
        prompts: vec![Prompt::Encoded { text: String::new(), tokens: request.token_ids.to_vec() }],
        params,
        field: "prompt",
        asked: stop.max_tokens.map(|_| "max_tokens"),
        stream: true,
    })
}

/// Refuses fields that would change the answer and that the engine does not support.
fn refuse_unknown(request: &PreprocessedRequest) -> Result<(), Refusal> {
    let (sampling, routing) = (&request.sampling_options, request.routing.as_ref());
    let is_absent = [
        ("n", sampling.n.is_none_or(|n| n == 1)),
        ("guided_decoding", sampling.guided_decoding.is_none()),
        ("max_thinking_tokens", request.stop_conditions.max_thinking_tokens.is_none()),
        ("prompt_logprobs", request.output_options.prompt_logprobs.is_none()),
        ("prompt_embeds", request.prompt_embeds.is_none()),
        ("multi_modal_data", request.multi_modal_data.as_ref().is_none_or(|data| data.is_empty())),
        ("encoder_result", request.encoder_result.is_none()),
        ("prefill_result", request.prefill_result.is_none()),
        ("bootstrap_info", request.bootstrap_info.is_none()),
        ("lora_name", routing.is_none_or(|routing| routing.lora_name.is_none())),
        ("cache_salt", routing.is_none_or(|routing| routing.cache_namespace.is_none())),
    ];
    let passed = request.extra_args.as_ref().and_then(|extra| extra.get("sampling_options"));
    let passed = PASSED_THROUGH.map(|field| (field, passed.is_none_or(|passed| passed.get(field).is_none())));
    is_absent.into_iter().chain(passed).try_for_each(|(field, is_absent)| match field {
        "n" => check(is_absent, field, "n must be 1: ask for several outputs in several requests"),
        _ => check(is_absent, field, format!("{field} is not supported")),
    })
}

fn check(ok: bool, field: &'static str, why: impl Into<String>) -> Result<(), Refusal> {
    if ok { Ok(()) } else { Err(Refusal { field: Some(field), why: why.into() }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use dynamo_backend_common::{GuidedDecodingOptions, OutputOptions, StopConditions};

    use super::*;

    fn request() -> PreprocessedRequest {
        PreprocessedRequest::builder()
            .model("m".into())
            .token_ids(vec![4, 5])
            .stop_conditions(StopConditions::default())
            .sampling_options(Default::default())
            .output_options(OutputOptions::default())
            .build()
            .unwrap()
    }

    fn params(request: &PreprocessedRequest) -> SamplingParams {
        work(request, &GenerationConfig::default()).unwrap().params
    }

    fn refused(request: &PreprocessedRequest) -> &'static str {
        let refusal = work(request, &GenerationConfig::default()).unwrap_err();
        assert!(refusal.why.contains(refusal.field.unwrap()), "{refusal}");
        refusal.field.unwrap()
    }

    #[test]
    fn a_request_without_options_samples_like_openai() {
        let work = work(&request(), &GenerationConfig::default()).unwrap();
        let want = SamplingParams { temperature: 1.0, max_tokens: usize::MAX, ..SamplingParams::default() };
        assert_eq!((work.params, work.asked), (want, None));
        assert_eq!(work.prompts, [Prompt::Encoded { text: String::new(), tokens: vec![4, 5] }]);
        let defaults = GenerationConfig { do_sample: Some(true), top_k: Some(20), ..GenerationConfig::default() };
        assert_eq!(super::work(&request(), &defaults).unwrap().params.top_k, 20);
    }

    #[test]
    fn options_are_mapped() {
        let mut request = request();
        request.sampling_options.temperature = Some(0.5);
        request.sampling_options.top_k = Some(-1);
        request.sampling_options.top_p = Some(0.9);
        request.sampling_options.min_p = Some(0.1);
        request.sampling_options.repetition_penalty = Some(1.2);
        request.sampling_options.presence_penalty = Some(0.3);
        request.sampling_options.frequency_penalty = Some(0.4);
        request.sampling_options.seed = Some(-1);
        request.sampling_options.best_of = Some(3);
        request.stop_conditions = StopConditions {
            max_tokens: Some(9),
            min_tokens: Some(2),
            ignore_eos: Some(true),
            stop: Some(vec!["x".into()]),
            stop_token_ids: Some(vec![7]),
            stop_token_ids_visible: Some(vec![8]),
            stop_token_ids_hidden: Some(vec![2]),
            ..StopConditions::default()
        };
        request.eos_token_ids = vec![2];
        request.output_options.logprobs = Some(4);
        request.output_options.skip_special_tokens = Some(false);
        let want = SamplingParams {
            best_of: 3,
            max_tokens: 9,
            min_tokens: 2,
            ignore_eos: true,
            stop: vec!["x".into()],
            stop_token_ids: vec![7, 8, 2],
            temperature: 0.5,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: 0.4,
            seed: Some(u64::MAX),
            logprobs: Some(4),
            skip_special_tokens: false,
            ..SamplingParams::default()
        };
        assert_eq!(params(&request), want);
        assert_eq!(work(&request, &GenerationConfig::default()).unwrap().asked, Some("max_tokens"));
    }

    #[test]
    fn best_of_sets_the_number_of_beams() {
        let mut request = request();
        request.sampling_options.use_beam_search = Some(true);
        request.sampling_options.best_of = Some(4);
        request.sampling_options.length_penalty = Some(0.5);
        request.stop_conditions.stop_token_ids_hidden = Some(vec![2]);
        request.eos_token_ids = vec![2];
        let params = params(&request);
        let beam = Beam { width: 4, length_penalty: 0.5, early_stopping: EarlyStopping::No };
        assert_eq!((params.beam, params.n, params.best_of, params.temperature), (Some(beam), 1, 1, 0.0));
        assert!(params.stop_token_ids.is_empty());
        params.validate().unwrap();
        request.sampling_options.use_beam_search = None;
        assert_eq!(refused(&request), "length_penalty");
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        let with = |change: fn(&mut PreprocessedRequest)| {
            let mut request = request();
            change(&mut request);
            refused(&request)
        };
        assert_eq!(with(|r| r.sampling_options.n = Some(2)), "n");
        assert_eq!(with(|r| r.sampling_options.top_k = Some(-2)), "top_k");
        assert_eq!(
            with(|r| r.sampling_options.guided_decoding = Some(GuidedDecodingOptions::default())),
            "guided_decoding"
        );
        assert_eq!(with(|r| r.stop_conditions.max_thinking_tokens = Some(5)), "max_thinking_tokens");
        assert_eq!(with(|r| r.output_options.prompt_logprobs = Some(1)), "prompt_logprobs");
        assert_eq!(with(|r| r.prompt_embeds = Some("AA==".into())), "prompt_embeds");
        assert_eq!(with(|r| r.routing_mut().lora_name = Some("l".into())), "lora_name");
        assert_eq!(with(|r| r.routing_mut().cache_namespace = Some("s".into())), "cache_salt");
        for field in PASSED_THROUGH {
            let mut request = request();
            request.extra_args = Some(serde_json::json!({"sampling_options": {field: [1]}}));
            assert_eq!(refused(&request), field);
        }
    }
}
