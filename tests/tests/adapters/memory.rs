//! The memory of adapters, which is counted in pages of the KV cache.

use engine::{Llm, Options, SchedulerOptions};

use super::{files, greedy, load, options, prompt};

/// An engine with a cache of this many KiB and no swap space.
fn small(kib: usize) -> Llm {
    let scheduler = SchedulerOptions { prefix_caching: false, ..SchedulerOptions::default() };
    let options = Options { kv_memory: Some(kib << 10), swap_space: Some(0), scheduler, ..options() };
    Llm::load(&files("llama2"), &options).unwrap()
}

#[test]
fn adapters_take_pages_and_idle_ones_give_way_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut llm = small(512);
    let adapters: Vec<_> = (0..6)
        .map(|seed| load(&llm, &files("llama2"), (&format!("adapter-{seed}"), seed, 8), directory.path()))
        .collect();
    let (pages, all) = (adapters[0].pages(), llm.engine().scheduler().usage().num_blocks);
    // Two layers of seven projections of rank 8, whose inputs and outputs together are 1632 each, in f32.
    let bytes: usize = 4 * 8 * 2 * (4 * (96 + 96) + 3 * (96 + 256));
    assert_eq!(pages, bytes.div_ceil(llm.kv_layout().page_bytes()));
    assert!(2 * pages < all && 6 * pages > all, "{pages} of {all} pages");
    for (i, adapter) in adapters.iter().chain(&adapters).enumerate() {
        llm.generate(&[prompt(1, 30)], &greedy(Some(adapter))).unwrap();
        let scheduler = llm.engine().scheduler();
        let usage = scheduler.usage();
        assert_eq!((scheduler.check_integrity(), usage.used_blocks), (Ok(()), 0));
        let most = (i + 1).min(all / pages) * pages;
        assert!((pages..=most).contains(&usage.adapter_blocks), "request {i}: {} blocks", usage.adapter_blocks);
    }
    // Requests that need all blocks evict the idle adapters.
    let whole = (all * 16 - 30) as u32;
    let params = engine::SamplingParams { max_tokens: 20, ..greedy(None) };
    let longest = prompt(1, whole.min(220));
    llm.generate(&[longest.clone(), longest.clone(), longest], &params).unwrap();
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
    assert_eq!(llm.stats().exhausted, 0);
}

#[test]
fn what_never_fits_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let llm = small(100);
    let path = directory.path().join("large");
    tests::adapters::RandomAdapter::new(&files("llama2"), 1, 60).write(&path);
    let error = llm.adapters().load("large", &path).unwrap_err().to_string();
    assert!(error.contains("MiB of the KV cache's memory"), "{error}");
    // The adapter fits, but not together with the prompt.
    let mut llm = small(200);
    let adapter = load(&llm, &files("llama2"), ("small", 1, 8), directory.path());
    let len = (llm.engine().scheduler().usage().num_blocks * 16 - 16) as u32;
    assert!(llm.add(&prompt(1, len), greedy(None)).is_ok());
    let error = llm.add(&prompt(1, len), greedy(Some(&adapter))).unwrap_err().to_string();
    assert!(error.contains("tokens, but the KV cache holds"), "{error}");
}
