//! From the command line to prompts, sampling parameters and engine options.

use std::io::Read;

use anyhow::{Context, Result, bail};
use engine::config::GenerationConfig;
use engine::llm::{Options, Prompt};
use engine::sampling::{Beam, EarlyStopping, SamplingOptions, SamplingParams};

use crate::args::Args;

/// Tokens an output gets when nobody says.
const MAX_TOKENS: usize = 256;

/// The prompts, in the order of the options: texts, lines of the file, ids.
pub fn prompts(args: &Args) -> Result<Vec<Prompt>> {
    let mut prompts: Vec<Prompt> = args.prompt.iter().cloned().map(Prompt::Text).collect();
    if let Some(file) = &args.prompts {
        let text = if file == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read prompts from standard input")?;
            text
        } else {
            std::fs::read_to_string(file).with_context(|| format!("cannot read prompts from {file}"))?
        };
        prompts.extend(text.lines().filter(|line| !line.is_empty()).map(|line| Prompt::Text(line.into())));
    }
    prompts.extend(args.prompt_ids.iter().map(|ids| Prompt::Tokens(ids.0.clone())));
    if prompts.is_empty() {
        bail!("nothing to continue: give --prompt, --prompts or --prompt-ids (--help shows all options)");
    }
    Ok(prompts)
}

/// The texts that are computed once for all prompts that begin with them. A line break at a file's end does not count.
pub fn shared_prefixes(args: &Args) -> Result<Vec<Prompt>> {
    let read = |file: &String| {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read a shared prefix from {file}"))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Prompt::Text(text.strip_suffix('\r').unwrap_or(text).into()))
    };
    args.shared_prefix.iter().map(read).collect()
}

/// How to choose tokens; what is left open comes from the model's `defaults`.
pub fn sampling(args: &Args, defaults: &GenerationConfig) -> Result<SamplingParams> {
    let n = args.n.unwrap_or(1);
    let beam = args.beam_width.map(|width| Beam {
        width,
        length_penalty: args.length_penalty.unwrap_or(1.0),
        early_stopping: args.early_stopping.unwrap_or(EarlyStopping::No),
    });
    if beam.is_none() && (args.length_penalty.is_some() || args.early_stopping.is_some()) {
        bail!("length-penalty and early-stopping need beam-width");
    }
    let mut params = SamplingParams {
        n,
        best_of: args.best_of.unwrap_or(n),
        max_tokens: args.max_tokens.or(defaults.max_new_tokens).unwrap_or(MAX_TOKENS),
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        seed: args.seed,
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        logprobs: args.logprobs,
        beam,
        ..SamplingParams::default()
    };
    let options = SamplingOptions {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
    };
    options.apply(defaults, &mut params);
    params.validate()?;
    let filters = params.top_k != 0 || params.top_p != 1.0 || params.min_p != 0.0;
    if filters && params.temperature == 0.0 && args.temperature.is_none() {
        // Whoever names one of these means to sample, and would get the greedy text unawares.
        bail!("top-k, top-p and min-p need temperature, since this model's default is greedy");
    }
    Ok(params)
}

/// How to set the engine up.
pub fn options(args: &Args) -> Options {
    Options {
        device: args.device,
        dtype: args.dtype,
        kv_dtype: args.kv_dtype,
        block_size: args.block_size,
        kv_memory: args.kv_memory,
        swap_space: args.swap_space,
        preemption: args.preemption,
        prefix_caching: args.prefix_caching,
        gpu_memory_utilization: args.gpu_memory_utilization,
        cuda_graphs: args.cuda_graphs,
        max_num_seqs: args.max_num_seqs,
        max_batch_tokens: args.max_batch_tokens,
        delay_factor: f64::from(args.delay_factor),
        threads: args.threads,
    }
}
