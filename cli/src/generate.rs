//! `quire generate`, the default command: loads a model, answers prompts and prints the results.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::{Context, Result};
use argh::ArgsInfo;
use engine::ModelFiles;
use engine::{Event, Llm, Prompt};

use crate::args::Args;
use crate::chat::Chat;
use crate::command::{Command, Positionals, Words};
use crate::interrupt::{Interrupt, Interrupted};
use crate::print::Printer;
use crate::trace::KvTrace;
use crate::{progress, report, request};

/// The command that continues text.
pub const COMMAND: Command = Command {
    name: "generate",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[
        ("Prompts", &["--model", "--prompt", "--prompts", "--prompt-ids", "--shared-prefix"]),
        ("Chat", &["--chat", "--raw", "--system", "--chat-template"]),
        ("Length", &["--max-tokens", "--stop", "--ignore-eos"]),
        ("Structured output", &["--json-schema", "--regex", "--grammar"]),
        (
            "Sampling",
            &[
                "--temperature",
                "--top-k",
                "--top-p",
                "--min-p",
                "--repetition-penalty",
                "--presence-penalty",
                "--frequency-penalty",
                "--seed",
            ],
        ),
        ("Several outputs", &["--n", "--best-of", "--beam-width", "--length-penalty", "--early-stopping"]),
        ("Printing", &["--json", "--logprobs", "--stats", "--trace-kv", "--verbose", "--version"]),
    ],
    runs_engine: true,
    examples: &[
        "quire -p \"Once upon a time\"",
        "quire -p \"One day, a fox\" --temperature 0.8 --seed 7 --n 3",
        "quire --model facebook/opt-125m --prompts questions.txt --json --max-tokens 64",
        "quire ./my-llama -p \"The answer is\" --beam-width 4 --n 2",
        "quire qwen3-0.6b -p \"A fox, as JSON\" --json-schema fox.json",
        "echo \"Once upon a time\" | quire",
    ],
    run,
};

/// Loads the model, answers the prompts and prints the results.
fn run(words: &Words) -> Result<()> {
    let start = Instant::now();
    let (args, engine) = (&words.own::<Args>()?, words.engine()?);
    if args.version {
        return Ok(writeln!(io::stdout(), "quire {}", env!("CARGO_PKG_VERSION"))?);
    }
    let prompts = request::prompts(args)?;
    let options = engine.options()?;
    let prefixes = engine.shared_prefixes()?;
    let files = ModelFiles::resolve(engine.model.as_deref(), true)?;
    let chat = Chat::from_args(args, &files)?;
    let mut params = request::sampling(args, &files.generation_config()?)?;
    let grammar = request::grammar(args)?;
    let mut llm = Llm::load_with(&files, &options, progress::loading())?;
    report::print_device_notes(&llm);
    if args.verbose {
        eprintln!("{}", report::loaded(&files, &llm, start.elapsed()));
    }
    if let Some((option, grammar)) = &grammar {
        params.constraint = Some(llm.compile(grammar).with_context(|| format!("--{option}"))?);
    }
    params.adapter = engine.only_adapter(&llm)?;
    let trace = args.trace_kv.as_ref().map(|path| KvTrace::begin(path, &mut llm)).transpose()?;
    for (prefix, file) in prefixes.iter().zip(&engine.shared_prefix) {
        llm.pin_prefix(prefix).with_context(|| format!("shared prefix {file}"))?;
    }
    let prompts: Vec<Prompt> = match &chat {
        Some(chat) => prompts.into_iter().map(|prompt| chat.prompt(prompt, llm.tokenizer())).collect::<Result<_>>()?,
        None => prompts,
    };
    // Queue all prompts before printing, so that one bad prompt among many is reported first.
    let mut ids = Vec::with_capacity(prompts.len());
    for (i, prompt) in prompts.iter().enumerate() {
        let added = llm.add(prompt, params.clone());
        ids.push(if prompts.len() == 1 { added? } else { added.with_context(|| format!("prompt {}", i + 1))? });
    }

    let interrupt = Interrupt::watch()?;
    let mut printer = Printer::new(args, files.name(), chat.is_none(), &params, ids.clone());
    let mut completions = Vec::new();
    let begun = Instant::now();
    printer.begin(&llm)?;
    while llm.has_work() {
        if interrupt.was_pressed() {
            // The next step reports every request with its output so far.
            ids.iter().for_each(|&id| llm.abort(id));
        }
        for event in llm.step()? {
            match event {
                Event::Prompt { .. } => {} // never requested
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
    let cut = grammar.and_then(|(option, _)| report::cut_outputs(option, &params, &completions));
    let ended = report::context_ended(args, &llm, &params, &completions);
    for note in report::exhausted(&llm).into_iter().chain(ended).chain(cut) {
        eprintln!("{note}");
    }
    if args.stats {
        eprint!("{}", report::stats(&llm, &completions, begun.elapsed()));
    }
    if interrupt.was_pressed() { Err(Interrupted.into()) } else { Ok(()) }
}
