//! Drafts change how many steps a request takes, and nothing else.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::SchedulerOptions;
use engine::Stats;
use engine::tools::batch::Batch;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{SampleRow, SamplingParams, sample_row};
use oracle::{VOCAB, config, finish, greedy};

/// A model that prefers to continue as the text did after the latest earlier occurrence of its last two tokens.
struct Copyist;

impl Runner for Copyist {
    fn run(&mut self, _: Batch, rows: &[SampleRow<'_>]) -> engine::Result<Computed> {
        rows.iter()
            .map(|row| {
                let text = [row.prompt, row.output].concat();
                let last = &text[text.len() - 2..];
                let next = text[..text.len() - 1].windows(2).rposition(|pair| pair == last).map(|at| text[at + 2]);
                let likes = |token: u32| if next == Some(token) { 3.0 } else { (token % 3) as f32 };
                sample_row(&(0..VOCAB).map(likes).collect::<Vec<_>>(), row, &mut Vec::new())
            })
            .collect()
    }
}

fn run(draft_tokens: usize, params: &SamplingParams) -> (Vec<Vec<u32>>, Stats) {
    let scheduler = SchedulerOptions { draft_tokens, ..config(64, 4).scheduler };
    let mut engine = Engine::new(EngineConfig { scheduler, ..config(64, 4) }, Box::new(Copyist));
    let prompt: Vec<u32> = (0..24).map(|i| 1 + i % 7).collect();
    engine.add(prompt, params.clone()).unwrap();
    let done = finish(&mut engine);
    (done[0].outputs.iter().map(|output| output.tokens.clone()).collect(), engine.stats())
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_steps() {
    let (plain, single) = run(0, &greedy(40));
    let (drafted, several) = run(5, &greedy(40));
    assert_eq!(drafted, plain);
    assert_eq!((single.steps, single.drafted_tokens), (40, 0));
    // The prompt's step gives one token, six steps give six each, and the last step gives three.
    assert_eq!((several.steps, several.accepted_tokens), (8, several.drafted_tokens));
    assert_eq!(several.sampled_tokens, 40, "rejected drafts do not count");
}

#[test]
fn a_wrong_draft_does_not_change_the_output() {
    let params = SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(7), ..greedy(60) };
    let (plain, single) = run(0, &params);
    let (drafted, several) = run(8, &params);
    assert_eq!(drafted, plain, "choices depend on seed and position only");
    assert!(several.accepted_tokens > 0 && several.accepted_tokens < several.drafted_tokens, "{several:?}");
    assert!(several.steps < single.steps);
    assert_eq!(several.sampled_tokens, single.sampled_tokens);
}

#[test]
fn drafts_do_not_change_where_requests_end() {
    // An output may end in the middle of a step.
    for max_tokens in 1..12 {
        assert_eq!(run(5, &greedy(max_tokens)).0, run(0, &greedy(max_tokens)).0);
    }
    let stops = SamplingParams { stop_token_ids: vec![6], ..greedy(40) };
    let (drafted, _) = run(5, &stops);
    assert_eq!(drafted, run(0, &stops).0);
    assert_eq!(drafted[0].last(), Some(&6));
}
