//! Formats the output of `--verbose` and `--stats`, and notes for standard error.

use std::time::Duration;

use engine::FinishReason;
use engine::ModelFiles;
use engine::SamplingParams;
use engine::tools::engine::EngineConfig;
use engine::tools::kv::KvLayout;
use engine::{Completion, Llm};

use crate::args::Args;

const MIB: f64 = (1 << 20) as f64;

/// Describes the model and its setup.
pub fn loaded(files: &ModelFiles, llm: &Llm, time: Duration) -> String {
    let (c, kv, e) = (llm.config(), llm.kv_layout(), llm.engine().config());
    format!(
        "model      {} ({}): {} layers, {} heads ({} key/value) of {}, hidden {}, vocabulary {}, {} positions\n\
         KV cache   {}\n\
         swap space {} {}\n\
         limits     {} sequences, {} tokens a step\n\
         loaded in  {:.3} s",
        files.name(),
        c.architecture,
        c.layers,
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.hidden,
        c.vocab_size,
        c.max_positions,
        cache(kv, e),
        e.swap_blocks,
        if kv.groups.len() == 1 { "blocks" } else { "pages" },
        e.scheduler.max_num_seqs,
        e.scheduler.max_batch_tokens,
        time.as_secs_f64(),
    )
}

/// Describes the KV cache. With several groups of layers, each has a line of its own.
fn cache(kv: &KvLayout, e: &EngineConfig) -> String {
    let (size, mib) = (kv.block_size, (e.num_blocks * kv.page_bytes()) as f64 / MIB);
    let blocks = sizes(kv, e);
    let group_bytes = |group| kv.group_block_bytes(group) / size;
    if kv.groups.len() == 1 {
        return format!("{blocks} in {}: {mib:.1} MiB, {} bytes a token", kv.dtype, group_bytes(0));
    }
    let mut text = format!("{blocks} in {}: {mib:.1} MiB", kv.dtype);
    for (at, group) in kv.groups.iter().enumerate() {
        let per_page = match group.blocks_per_page {
            1 => "1 block".to_owned(),
            blocks => format!("{blocks} blocks"),
        };
        let bytes = match group.state {
            Some(_) => String::new(),
            None => format!(": {} bytes a token", group_bytes(at)),
        };
        text += &format!("\n{:11}{group}{bytes}, {per_page} per page", "");
    }
    text
}

/// Describes the numbers and sizes of blocks.
fn sizes(kv: &KvLayout, e: &EngineConfig) -> String {
    match kv.groups.len() {
        1 => format!("{} blocks of {} tokens", e.num_blocks, e.block_size),
        _ => format!("{} pages of {} KiB, with blocks of {} tokens", e.num_blocks, kv.page_bytes() >> 10, e.block_size),
    }
}

/// Prints the device's memory use and notes to standard error.
pub fn print_device_notes(llm: &Llm) {
    let notes = llm.device().notes.iter().map(|note| format!("note: {note}"));
    for line in memory(llm).into_iter().chain(notes) {
        eprintln!("{line}");
    }
}

/// Describes how a GPU's memory is divided. `None` on the CPU.
fn memory(llm: &Llm) -> Option<String> {
    let (device, kv, e) = (llm.device(), llm.kv_layout(), llm.engine().config());
    let memory = device.memory?;
    let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
    Some(format!(
        "{}: {:.2} GiB of memory, weights {:.2} GiB, activations {:.2} GiB, KV cache {} ({:.2} GiB)",
        device.name,
        gib(memory.total),
        gib(memory.weights),
        gib(memory.activations),
        sizes(kv, e),
        gib(e.num_blocks * kv.page_bytes()),
    ))
}

/// Returns a note if outputs ended early because the KV cache was full.
pub fn exhausted(llm: &Llm) -> Option<String> {
    let (n, e) = (llm.stats().exhausted, llm.engine().config());
    let tokens = match e.groups.len() {
        1 => format!("{} tokens", e.num_blocks * e.block_size),
        _ => format!("at most {} tokens of a sequence", llm.engine().context_len(&[], &SamplingParams::default())),
    };
    (n > 0).then(|| {
        format!("note: {n} outputs ended early, because the KV cache holds {tokens} (--kv-memory sets its size)")
    })
}

/// Returns a note if requests reached the model's context length before `--max-tokens`. Without `--max-tokens`,
/// `--stats` or `--verbose` there is no note.
pub fn context_ended(args: &Args, llm: &Llm, params: &SamplingParams, completions: &[Completion]) -> Option<String> {
    let positions = llm.config().max_positions;
    let ended = |c: &&Completion| {
        c.outputs.iter().any(|output| {
            let all = c.prompt_tokens.len() + output.tokens.len();
            output.finish_reason == FinishReason::Length && output.tokens.len() < params.max_tokens && all >= positions
        })
    };
    let n = completions.iter().filter(ended).count();
    let asked = args.max_tokens.is_some() || args.stats || args.verbose;
    (n > 0 && asked).then(|| {
        let (requests, most) = (if n == 1 { "request" } else { "requests" }, params.max_tokens);
        format!("note: {n} {requests} ended before {most} tokens (--max-tokens), at the model's context length of {positions}")
    })
}

/// Returns a warning if outputs ended before they satisfy `option`.
pub fn cut_outputs(option: &str, params: &SamplingParams, completions: &[Completion]) -> Option<String> {
    let constraint = params.constraint.as_ref()?;
    let is_cut = |tokens: &[u32]| {
        let mut matcher = constraint.matcher();
        for &token in tokens {
            matcher.read(token);
        }
        !matcher.may_end()
    };
    let n = completions.iter().flat_map(|c| &c.outputs).filter(|output| is_cut(&output.tokens)).count();
    let outputs = match n {
        0 => return None,
        1 => "an output was cut and is".into(),
        n => format!("{n} outputs were cut and are"),
    };
    Some(format!("warning: {outputs} incomplete under --{option} (--max-tokens is {})", params.max_tokens))
}

/// Formats the times, rates and memory use of a run that took `time`.
pub fn stats(llm: &Llm, completions: &[Completion], time: Duration) -> String {
    let s = llm.stats();
    let seconds = time.as_secs_f64();
    let prompt: usize = completions.iter().map(|c| c.prompt_tokens.len()).sum();
    let returned: usize = completions.iter().flat_map(|c| &c.outputs).map(|o| o.tokens.len()).sum();
    let first = percentiles(completions.iter().map(|c| c.time_to_first_token.as_secs_f64()));
    let each = percentiles(completions.iter().filter_map(|c| {
        let longest = c.outputs.iter().map(|o| o.tokens.len()).max()?;
        (longest > 1).then(|| (c.time - c.time_to_first_token).as_secs_f64() / (longest - 1) as f64)
    }));
    let drafts = match s.drafted_tokens {
        0 => String::new(),
        drafted => format!("drafts                {drafted} tokens, {:.1} % accepted\n", 100.0 * s.acceptance()),
    };
    let tier = match s.offloaded_blocks {
        0 => String::new(),
        out => {
            let (back, tokens) = (s.restored_blocks, s.swap_hit_tokens);
            format!(
                "swapped prefixes      {out} cached blocks moved to the swap space, {back} moved back ({tokens} prefix tokens)\n"
            )
        }
    };
    format!(
        "requests              {} ({prompt} prompt tokens, {} generated, {returned} of them returned)\n\
         time                  {seconds:.3} s, {:.1} tokens/s generated\n\
         time to first token   {first}\n\
         time per later token  {each}\n\
         steps                 {} ({} tokens computed, at most {} sequences at a time)\n{drafts}\
         preemptions           {} ({} by swapping: {} blocks swapped out, {} swapped in)\n\
         prefix cache hits     {:.1} % of {} tokens looked up\n{tier}\
         {}\n\
         sharing               saved {:.1} % of the blocks ({} copied on write)\n\
         KV utilisation        {:.1} % of the slots in allocated blocks held tokens ({:.1} % at the peak)\n\
         peak memory           {}\n",
        completions.len(),
        s.sampled_tokens,
        s.sampled_tokens as f64 / seconds,
        s.steps,
        s.computed_tokens,
        s.peak_seqs,
        s.preemptions,
        s.swapped_out,
        s.swapped_out_blocks,
        s.swapped_in_blocks,
        100.0 * s.hit_rate(),
        s.looked_up_tokens,
        peak(llm),
        100.0 * s.sharing_saved(),
        s.copied_blocks,
        100.0 * s.utilisation(),
        100.0 * s.peak_utilisation(),
        peak_memory().map_or("-".into(), |bytes| format!("{:.0} MiB, mapped weights included", bytes / MIB)),
    )
}

/// Describes how much of the KV cache was in use at the peak. Blocks of several groups of layers differ in size, so
/// shares of the memory replace their numbers.
fn peak(llm: &Llm) -> String {
    let (peak, all) = (llm.stats().peak, llm.engine().scheduler().usage().num_blocks);
    let (used, shared, cached) = (peak.used_blocks, peak.shared_blocks, peak.cached_blocks);
    if llm.kv_layout().groups.len() == 1 {
        return format!("KV blocks             {used} of {all} at the peak ({shared} shared; {cached} more cached)");
    }
    let share = |units: usize| format!("{:.1} %", 100.0 * units as f64 / all as f64);
    let (used, shared, cached) = (share(used), share(shared), share(cached));
    format!("KV memory             {used} in use at the peak ({shared} shared; {cached} more cached)")
}

/// Returns the process's peak memory in bytes, if the system reports it (Linux).
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    kib.trim().trim_end_matches("kB").trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// Formats the median and 99th percentile in milliseconds. `times` are in seconds.
fn percentiles(times: impl Iterator<Item = f64>) -> String {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let at = |p: f64| times.get(((times.len().saturating_sub(1)) as f64 * p).round() as usize);
    match (at(0.5), at(0.99)) {
        (Some(median), Some(high)) => format!("{:.2} ms median, {:.2} ms 99th percentile", median * 1e3, high * 1e3),
        _ => "-".into(),
    }
}
