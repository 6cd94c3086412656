//! Edge cases of constraints: rejected grammars, outputs that cannot continue, and thoughts before the constrained
//! text.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod language;

use engine::Error;
use engine::FinishReason;
use engine::SchedulerOptions;
use engine::tools::batch::Batch;
use engine::tools::constraint::{Grammar, GrammarCompiler, Reading, Thoughts};
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{Beam, EarlyStopping, SampleRow, SamplingParams, sample_row};
use language::{EOS, Language, run};
use serde_json::json;

#[test]
fn invalid_grammars_are_refused_with_the_reason() {
    let language = Language::new();
    let deep = (0..300).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let long: Vec<String> = (0..20_000).map(|i| format!("choice {i}")).collect();
    let refused = [
        (Grammar::JsonSchema(json!({"type": "strin"})), "strin"),
        (Grammar::JsonSchema(json!({"properties": {"a": {"$ref": "#/nowhere"}}})), "nowhere"),
        (Grammar::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 3})), "minimum"),
        (Grammar::JsonSchema(json!({"type": "string", "pattern": "("})), "("),
        (Grammar::JsonSchema(json!("text")), "must be an object"),
        (Grammar::JsonSchema(json!({"description": "x".repeat(1 << 20)})), "bytes at most"),
        (Grammar::Regex("a(b".into()), "a(b"),
        (Grammar::Choice(Vec::new()), "choice"),
        (Grammar::Choice(long), "choice"),
        (Grammar::Lark("start: thing".into()), "thing"),
        (Grammar::Lark("root ::= \"a\"".into()), "Lark"),
    ];
    for (grammar, why) in refused {
        let shown = format!("{grammar:?}").chars().take(80).collect::<String>();
        let Err(Error::Request(refusal)) = language.compiler.compile(&grammar) else { panic!("{shown} is accepted") };
        assert!(refusal.why.contains(why) && refusal.why.len() < 1000, "{shown}: {refusal}");
    }
    // Deep nesting, but within the limit.
    assert!(language.compiler.compile(&Grammar::JsonSchema(deep)).is_ok());
}

/// A model that always gives probability 1 to the same token.
struct Stubborn(u32);

impl Runner for Stubborn {
    fn run(&mut self, _: Batch, rows: &[SampleRow<'_>]) -> engine::Result<Computed> {
        let sample = |row: &SampleRow<'_>| {
            let mut logits = vec![f32::NEG_INFINITY; 4096.max(self.0 as usize + 1)];
            logits[self.0 as usize] = 1.0;
            sample_row(&logits, row, &mut Vec::new())
        };
        rows.iter().map(sample).collect()
    }
}

#[test]
fn an_output_that_cannot_continue_ends() {
    let language = Language::new();
    let digit = language.tokenizer.token_id("7").unwrap();
    let vocab_size = 4096.max(digit as usize + 1);
    let compiler = GrammarCompiler::new(language.tokenizer.clone(), vocab_size, &[EOS]);
    let constraint = |regex: &str| Some(compiler.compile(&Grammar::Regex(regex.into())).unwrap());
    for (regex, tokens, reason) in
        [("7{3}a", 3, FinishReason::Length), ("a", 0, FinishReason::Length), ("7{4}", 4, FinishReason::Stop)]
    {
        let beam = |width| Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        for (temperature, beam) in [(0.0, None), (1.0, None), (0.0, beam(1)), (0.0, beam(3))] {
            let config = EngineConfig {
                num_blocks: 50,
                block_size: 4,
                swap_blocks: 0,
                groups: vec![engine::tools::kv::CacheGroup::only(None)],
                max_len: 50,
                boundary: None,
                vocab_size,
                eos: vec![EOS],
                scheduler: SchedulerOptions::default(),
            };
            let mut engine = Engine::new(config, Box::new(Stubborn(digit)));
            let constraint = constraint(regex);
            let params = SamplingParams { temperature, constraint, beam, ..SamplingParams::default() };
            let free = engine.add(vec![5], SamplingParams { max_tokens: 9, ..SamplingParams::default() }).unwrap();
            let id = engine.add(vec![5], params).unwrap();
            let done = run(&mut engine);
            assert_eq!(done[&id].len(), 1);
            let output = &done[&id][0];
            assert_eq!((output.tokens.len(), output.finish_reason), (tokens, reason), "{regex}");
            assert_eq!(done[&free][0].tokens, [digit; 9]);
        }
    }
}

/// Whether a mask allows a token.
fn allows(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

#[test]
fn a_grammar_applies_after_the_thoughts() {
    let language = Language::new();
    let [begin, end, digit] = ["<", ">", "7"].map(|text| language.tokenizer.token_id(text).unwrap());
    let constraint = language.compile(Grammar::Regex("7{2}".into()));
    let mut thinks = constraint.clone().after(Thoughts::Possible { begin, end }).matcher();
    thinks.compute_mask();
    assert!(allows(thinks.mask(), begin) && allows(thinks.mask(), digit) && !allows(thinks.mask(), end));
    let mut silent = thinks.clone();
    assert_eq!([digit, digit].map(|token| silent.read(token)), [Reading::Open, Reading::Complete]);
    assert_eq!([begin, 9, digit, begin].map(|token| thinks.read(token)), [Reading::Open; 4]);
    thinks.compute_mask();
    assert!(allows(thinks.mask(), 9) && !allows(thinks.mask(), EOS), "an answer must follow the thoughts");
    assert_eq!(thinks.read(end), Reading::Open);
    thinks.compute_mask();
    assert!(allows(thinks.mask(), digit) && !allows(thinks.mask(), 9) && !allows(thinks.mask(), begin));
    assert_eq!([digit, 9, digit].map(|token| thinks.read(token)), [Reading::Open, Reading::Refused, Reading::Complete]);
    assert!(thinks.may_end());
}

#[test]
fn a_grammar_applies_to_the_contents_of_the_answers_message() {
    let language = Language::new();
    let [channel, name, message, digit] = ["<", "f", ">", "7"].map(|text| language.tokenizer.token_id(text).unwrap());
    let constraint = language.compile(Grammar::Regex("7".into()));
    let marks = [channel, name, message];
    let thoughts = |call| Thoughts::Message { marks, read: 0, call };
    // A call may take the place of the answer.
    let mut calls = constraint.clone().after(thoughts(Some(EOS))).matcher();
    calls.compute_mask();
    assert!(allows(calls.mask(), EOS));
    let mut thinks = constraint.after(thoughts(None)).matcher();
    // Another channel, the channel's name as contents, and a type between the channel and the contents.
    for token in [channel, 9, message, name, message, digit, channel, channel, name, 9, message] {
        thinks.compute_mask();
        assert!(allows(thinks.mask(), 9) && !allows(thinks.mask(), EOS));
        assert_eq!(thinks.read(token), Reading::Open);
    }
    thinks.compute_mask();
    assert!(allows(thinks.mask(), digit) && !allows(thinks.mask(), 9));
    assert_eq!(thinks.read(digit), Reading::Complete);
}

#[test]
fn a_constraint_of_another_vocabulary_is_refused() {
    let language = Language::new();
    let constraint = Some(language.compile(Grammar::JsonObject));
    let mut small = Engine::new(
        EngineConfig { vocab_size: 100, ..language.engine(9, SchedulerOptions::default()).config().clone() },
        Box::new(Stubborn(3)),
    );
    let error = small.add(vec![1], SamplingParams { constraint, ..SamplingParams::default() }).unwrap_err().to_string();
    assert!(error.contains("another model's vocabulary"), "{error}");
}
