//! The main job: load, answer, print.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::llm::{Event, Llm};
use engine::load::ModelFiles;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::print::Printer;
use crate::trace::Trace;
use crate::{report, request};

/// How long loading may take before it is shown.
const PATIENCE: Duration = Duration::from_millis(300);

/// Answers what the command line asks.
pub fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    let prompts = request::prompts(args)?;
    let prefixes = request::shared_prefixes(args)?;
    let files = ModelFiles::resolve(args.model.as_deref(), true)?;
    let params = request::sampling(args, &files.generation_config()?)?;
    let mut llm = Llm::load_with(&files, &request::options(args), loading_bar())?;
    report::say_where(&llm);
    if args.verbose {
        eprintln!("{}", report::loaded(&files, &llm, start.elapsed()));
    }
    let trace = args.trace_kv.as_ref().map(|path| Trace::begin(path, &mut llm)).transpose()?;
    for (prefix, file) in prefixes.iter().zip(&args.shared_prefix) {
        llm.pin_prefix(prefix).with_context(|| format!("shared prefix {file}"))?;
    }
    // All are queued before anything is printed, so that a bad prompt among many is found at once.
    let mut ids = Vec::with_capacity(prompts.len());
    for (i, prompt) in prompts.iter().enumerate() {
        let added = llm.add(prompt, params.clone());
        ids.push(if prompts.len() == 1 { added? } else { added.with_context(|| format!("prompt {}", i + 1))? });
    }

    let mut printer = Printer::new(args, &params, ids);
    let mut completions = Vec::new();
    let begun = Instant::now();
    printer.begin(&llm)?;
    while llm.has_work() {
        for event in llm.step()? {
            match event {
                Event::Prompt { .. } => {} // is not asked for
                Event::Token { token, text, .. } => printer.token(token, &text, llm.tokenizer())?,
                Event::Done(completion) => {
                    printer.done(&completion, llm.tokenizer())?;
                    completions.push(completion);
                }
            }
        }
    }
    if let Some(trace) = trace {
        trace.finish()?;
    }
    if let Some(note) = report::exhausted(&llm) {
        eprintln!("{note}");
    }
    if args.stats {
        eprint!("{}", report::stats(&llm, &completions, begun.elapsed()));
    }
    Ok(())
}

/// Shows how loading goes, if somebody is watching and it takes a while.
fn loading_bar() -> impl FnMut(usize, usize) + 'static {
    let (start, mut bar) = (Instant::now(), None::<ProgressBar>);
    move |done, all| {
        if bar.is_none() && start.elapsed() > PATIENCE {
            // Hidden by itself where standard error is no terminal.
            let style = ProgressStyle::with_template("loading {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}");
            let new = ProgressBar::new(all as u64);
            bar = Some(if let Ok(style) = style { new.with_style(style) } else { new });
        }
        if let Some(bar) = &bar {
            bar.set_position(done as u64);
            if done == all {
                bar.finish_and_clear();
            }
        }
    }
}
