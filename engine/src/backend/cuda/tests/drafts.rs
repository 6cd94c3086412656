//! Tests of steps with drafts: the attention kernel, the results, and recordings.

use super::*;

/// Returns the attention kernels that a step launches.
fn attended(loaded: &mut Loaded, step: Batch) -> Vec<String> {
    collect_reports(true).unwrap();
    loaded.step(step);
    let launched = take_reports().unwrap();
    collect_reports(false).unwrap();
    let attends = |name: &String| name.starts_with("paged_attention") || name.starts_with("paged_prefill");
    launched.into_iter().map(|launch| launch.kernel).filter(attends).collect()
}

/// Checks that drafts use decode attention together with other sequences, and that only prompts use prefill attention.
#[test]
fn drafts_are_rows_of_decode_attention() {
    for (name, kv_dtype, kernel, prefill) in [
        ("opt-350m-like", None, "paged_attention_f16_64_8", "paged_prefill_hopper_f16_64"),
        ("qwen3", None, "paged_attention_f16_128_16", "paged_prefill_hopper_f16_128"),
        ("qwen3", Some(KvDtype::Fp8), "paged_attention_f16fp8_128_8", "paged_prefill_f16fp8_128"),
        ("llama3", None, "paged_attention_f16_32_16", "paged_prefill_f16_32"),
    ] {
        let mut loaded = load_with(name, &Options { kv_dtype, ..Options::default() }, 0);
        let layers = loaded.layout.num_layers();
        let alone = attended(&mut loaded, sampled_everywhere(&[(4, 20), (1, 10), (2, 9)]));
        assert_eq!(alone, vec![kernel; layers], "{name}, {kv_dtype:?}");
        let with_a_prompt = attended(&mut loaded, batch(&[(4, 20), (18, 18), (1, 10)]));
        assert_eq!(with_a_prompt, [kernel, prefill].repeat(layers), "{name}, {kv_dtype:?}");
    }
}

/// Checks that a draft's tokens give the same samples as single-token steps: with and without a window, in several
/// parts, and together with prompts and sequences without a draft.
#[test]
fn drafts_give_the_same_samples_as_single_tokens() {
    for (name, kv_dtype) in [
        ("gpt2", None),
        ("llama3", None),
        ("mistral", None),
        ("qwen3", Some(KvDtype::Int8)),
        ("mistral", Some(KvDtype::Fp8)),
    ] {
        let options = Options { kv_dtype, ..Options::default() };
        let [mut drafted, mut single] = [(); 2].map(|()| load_with(name, &options, 0));
        let before = batch(&[(14, 14), (3, 3), (27, 27)]);
        assert_eq!(drafted.step(before.clone()), single.step(before));
        let mut step = batch(&[(6, 20), (1, 4), (5, 32), (17, 17)]);
        step.logit_rows = (0..12).chain([28]).collect();
        let together = drafted.step(step);
        let mut alone = [const { Vec::new() }; 3];
        for token in 1..=6 {
            // Sequences that are complete compute their last token again.
            let upto = |before: usize, new: usize| before + token.min(new);
            let sampled = single.step(batch(&[(1, upto(14, 6)), (1, upto(3, 1)), (1, upto(27, 5))]));
            for ((alone, new), sampled) in alone.iter_mut().zip([6, 1, 5]).zip(sampled) {
                alone.extend((token <= new).then_some(sampled));
            }
        }
        let prompt = single.step(batch(&[(1, 20), (1, 4), (1, 32), (17, 17)])).pop();
        let alone = alone.concat().into_iter().chain(prompt);
        assert_eq!(together.len(), 13);
        let mut equal = 0;
        for (row, (together, alone)) in together.iter().zip(alone).enumerate() {
            let at = format!("{name}, {kv_dtype:?}, row {row}: {together:?}, {alone:?}");
            for (token, logprob) in &together.top {
                let same = alone.top.iter().find(|other| other.0 == *token);
                assert!((same.unwrap_or(&alone.top[1]).1 - logprob).abs() < 2e-2, "{at}");
            }
            // Two almost equally likely tokens may swap places.
            equal += usize::from(together.token == alone.token);
        }
        assert!(equal >= 12, "{name}, {kv_dtype:?}: {equal}");
    }
}

/// Checks that one recording serves all steps with the same number of rows, whatever their drafts.
#[test]
fn steps_with_drafts_are_recorded_once_per_bucket() {
    for (name, kv_dtype) in [("llama3", None), ("mistral", Some(KvDtype::Int8))] {
        let [mut loaded, mut eager] = [true, false]
            .map(|cuda_graphs| load_with(name, &Options { cuda_graphs, kv_dtype, ..Options::default() }, 0));
        let prompts = batch(&[(20, 20), (18, 18), (26, 26)]);
        assert_eq!(loaded.step(prompts.clone()), eager.step(prompts));
        let mut recorded = Vec::new();
        for sequences in [
            &[(4, 24), (1, 19), (2, 28)][..],
            &[(1, 25), (6, 25)],
            &[(5, 30)],
            &[(1, 31)],
            &[(1, 1); 7],
            &[(2, 27), (2, 26), (1, 29)],
            &[(2, 29), (1, 27)],
        ] {
            let step = sampled_everywhere(sequences);
            assert_eq!(loaded.step(step.clone()), eager.step(step), "{name}: {sequences:?}");
            recorded.push(loaded.backend.num_recordings());
        }
        // Recordings: 8 rows with drafts, 1 and 8 rows without, 4 rows with drafts.
        assert_eq!(recorded, [1, 1, 1, 2, 3, 3, 4], "{name}");
        assert_eq!(eager.backend.num_recordings(), 0);
    }
}
