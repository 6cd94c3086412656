//! `quire chat`: a conversation in the terminal.

mod lines;
mod talk;
mod wrap;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::ModelFiles;
use engine::tools::answer::{AnswerReader, Part};
use engine::tools::chat::ChatTemplate;
use engine::tools::sampling::{SamplingOptions, SamplingParams};
use engine::{Completion, Event, Llm, Prompt};

use self::lines::Lines;
use self::talk::{Talk, Typed};
use self::wrap::Wrap;
use crate::chat::template_file;
use crate::command::{Command, Positionals, Words};
use crate::interrupt::Interrupt;
use crate::values::{count, number, seed};
use crate::words::UsageError;
use crate::{progress, report};

/// The command that holds a conversation.
pub const COMMAND: Command = Command {
    name: "chat",
    positionals: Positionals::Model,
    info: ChatArgs::get_args_info,
    groups: &[
        ("Conversation", &["--model", "--system", "--chat-template", "--max-tokens"]),
        ("Sampling", &["--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--seed"]),
    ],
    runs_engine: true,
    examples: &["quire chat qwen3-0.6b", "quire chat ./my-llama --system \"Be brief.\" --temperature 0.7"],
    run,
};

const HELP: &str = "\
/help         print this page
/reset        start a new conversation with the same system message
/save FILE    write the messages to a file, as JSON
/quit, /exit  end the program, like Ctrl-D
A line that ends with \\ continues in the next one. Tab completes commands. Ctrl-C stops the answer.";

/// Chat with a language model in the terminal.
#[derive(ArgsInfo, FromArgs, Debug)]
pub struct ChatArgs {
    /// system message
    #[argh(option, arg_name = "text")]
    pub system: Option<String>,
    /// file with a chat template to use instead of the model's
    #[argh(option, arg_name = "file")]
    pub chat_template: Option<String>,
    /// maximum tokens per answer (the model's default, else as many as fit)
    #[argh(option, short = 'n', arg_name = "n", from_str_fn(count))]
    pub max_tokens: Option<usize>,
    /// sampling temperature, 0 is greedy (the model's default, else 0)
    #[argh(option, arg_name = "t", from_str_fn(number))]
    pub temperature: Option<f32>,
    /// sample among the k most likely tokens (0 for all)
    #[argh(option, arg_name = "k", from_str_fn(count))]
    pub top_k: Option<usize>,
    /// sample among the most likely tokens whose probabilities add up to p
    #[argh(option, arg_name = "p", from_str_fn(number))]
    pub top_p: Option<f32>,
    /// sample among tokens at least p times as likely as the most likely one
    #[argh(option, arg_name = "p", from_str_fn(number))]
    pub min_p: Option<f32>,
    /// penalise tokens already in the conversation, 1 is off
    #[argh(option, arg_name = "r", from_str_fn(number))]
    pub repetition_penalty: Option<f32>,
    /// random seed, for reproducible sampling
    #[argh(option, arg_name = "s", from_str_fn(seed))]
    pub seed: Option<u64>,
}

/// Answers messages until the input ends.
fn run(words: &Words) -> Result<()> {
    let (args, engine) = (words.own::<ChatArgs>()?, words.engine()?);
    let options = engine.options()?;
    let files = ModelFiles::resolve(engine.model.as_deref(), true)?;
    let other = args.chat_template.as_deref().map(template_file).transpose()?;
    let template = ChatTemplate::of_model(&files, other.as_deref())?.ok_or_else(|| {
        UsageError::new(format!("{} has no chat template; give one with --chat-template", files.name()))
    })?;
    let mut params = sampling(&args, &files)?;
    let mut talk = Talk::new(template, args.system);
    params.skip_special_tokens = !talk.shows_special_tokens();
    let mut llm = Llm::load_with(&files, &options, progress::loading())?;
    report::print_device_notes(&llm);
    params.adapter = engine.only_adapter(&llm)?;
    for (prefix, file) in engine.shared_prefixes()?.iter().zip(&engine.shared_prefix) {
        llm.pin_prefix(prefix).with_context(|| format!("shared prefix {file}"))?;
    }
    let interrupt = Interrupt::watch()?;
    let mut lines = Lines::new()?;
    if lines.is_terminal() {
        eprintln!("{} - /help lists the commands", files.name());
    }
    while let Some(entry) = lines.next()? {
        match Typed::of(&entry) {
            Typed::Nothing => {}
            Typed::Help => writeln!(io::stdout(), "{HELP}")?,
            Typed::Reset => talk.reset(),
            Typed::Quit => break,
            Typed::Save(file) => save(&talk, file, &mut lines)?,
            Typed::Unknown(command) => eprintln!("error: there is no command {command}; /help lists all"),
            Typed::Message(text) => {
                // Discard a Ctrl-C from before this message.
                interrupt.take();
                talk.ask(text);
                match answer(&mut llm, &talk, &params, &interrupt, Screen::new(lines.width())) {
                    Ok(text) => talk.answered(text),
                    Err(error) if error.is::<Refused>() => {
                        talk.take_back();
                        eprintln!("error: {error:#}");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// A message that cannot be answered. The conversation continues without it.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn sampling(args: &ChatArgs, files: &ModelFiles) -> Result<SamplingParams> {
    let defaults = files.generation_config()?;
    let max_tokens = args.max_tokens.or(defaults.max_new_tokens).unwrap_or(usize::MAX);
    let mut params = SamplingParams { max_tokens, seed: args.seed, ..SamplingParams::default() };
    let options = SamplingOptions {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
    };
    options.apply(&defaults, &mut params);
    params.validate().map_err(|error| UsageError::new(error.to_string().replace('_', "-")))?;
    Ok(params)
}

/// Writes the messages to a file. Asks before it overwrites one.
fn save(talk: &Talk, file: &str, lines: &mut Lines) -> Result<()> {
    if Path::new(file).exists() && !lines.confirm(&format!("{file} exists. Overwrite it?"))? {
        eprintln!("error: not saved, because {file} exists");
        return Ok(());
    }
    match talk.save(file) {
        Ok(()) => eprintln!("saved in {file}"),
        Err(error) => eprintln!("error: {error:#}"),
    }
    Ok(())
}

/// Prints the answer as it is generated. Returns its text without the thoughts.
fn answer(
    llm: &mut Llm,
    talk: &Talk,
    params: &SamplingParams,
    interrupt: &Interrupt,
    mut screen: Screen,
) -> Result<String> {
    let text = talk.prompt().map_err(|error| Refused(format!("the chat template refuses this: {error}")))?;
    // The template already wrote the special tokens.
    let tokens = llm.tokenizer().encode_plain(&text)?;
    let mut reader = talk.reader(&text);
    let begun = Instant::now();
    let id = llm
        .add(&Prompt::Encoded { text, tokens }, params.clone())
        .map_err(|error| Refused(format!("{error}; /reset starts a new conversation")))?;
    let (mut said, mut sent) = (String::new(), 0);
    let mut first = None;
    while llm.has_work() {
        if interrupt.take() {
            llm.abort(id);
        }
        for event in llm.step()? {
            match event {
                Event::Prompt { .. } => {} // never requested
                Event::Token { text, .. } => {
                    first.get_or_insert_with(Instant::now);
                    sent += text.len();
                    said += &screen.print(reader.push(&text))?;
                }
                Event::Done(completion) => {
                    said += &finish(&mut screen, &mut reader, &completion, sent)?;
                    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
                    eprintln!("{}", statistics(&completion, (first.unwrap_or(begun) - begun).as_secs_f64(), seconds));
                }
            }
        }
    }
    Ok(said)
}

/// Prints the rest of an answer. Returns its text without the thoughts.
fn finish(screen: &mut Screen, reader: &mut AnswerReader, completion: &Completion, sent: usize) -> Result<String> {
    let rest = completion.outputs.first().and_then(|output| output.text.get(sent..)).unwrap_or_default();
    let mut parts = reader.push(rest);
    parts.extend(reader.finish());
    let said = screen.print(parts)?;
    screen.end()?;
    Ok(said)
}

/// Prints answers to standard output.
struct Screen {
    /// Wraps lines, on a terminal.
    wrap: Option<Wrap>,
    /// Whether the last printed text is a thought, which a terminal shows in grey.
    is_thought: bool,
}

impl Screen {
    /// Creates a screen that wraps lines at `width` if standard output is a terminal.
    fn new(width: Option<usize>) -> Self {
        Screen { wrap: width.filter(|_| io::stdout().is_terminal()).map(Wrap::new), is_thought: false }
    }

    /// Prints parts of an answer. Returns their text without the thoughts.
    fn print(&mut self, parts: Vec<Part>) -> Result<String> {
        let mut said = String::new();
        for part in parts {
            let is_thought = matches!(part, Part::Thought(_));
            if is_thought != self.is_thought {
                let rest = self.wrap.as_mut().map(Wrap::flush).unwrap_or_default();
                self.put(&rest)?;
                self.is_thought = is_thought;
            }
            let (Part::Thought(text) | Part::Text(text) | Part::Call(text) | Part::Arguments(text)) = part;
            match &mut self.wrap {
                Some(wrap) => {
                    let wrapped = wrap.push(&text);
                    self.put(&wrapped)?;
                }
                None => self.put(&text)?,
            }
            if !is_thought {
                said += &text;
            }
        }
        io::stdout().flush()?;
        Ok(said)
    }

    /// Ends the answer's last line.
    fn end(&mut self) -> Result<()> {
        let rest = self.wrap.as_mut().map(Wrap::flush).unwrap_or_default();
        self.put(&rest)?;
        Ok(writeln!(io::stdout())?)
    }

    fn put(&self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        match self.is_thought && !text.is_empty() && out.is_terminal() {
            true => write!(out, "\x1b[90m{text}\x1b[0m")?,
            false => write!(out, "{text}")?,
        }
        Ok(())
    }
}

/// Formats an answer's speed and cache reuse in one short line. `first` is the time to the first token in seconds,
/// `others` the time of the rest.
fn statistics(completion: &Completion, first: f64, others: f64) -> String {
    let tokens: usize = completion.outputs.iter().map(|output| output.tokens.len()).sum();
    let rate =
        if tokens > 1 && others > 0.0 { format!(", {:.1}/s", (tokens - 1) as f64 / others) } else { String::new() };
    let (prompt, cached) = (completion.prompt_tokens.len(), completion.cached_tokens);
    format!("[{tokens} tokens{rate}; {cached} of {prompt} cached; first after {first:.2} s]")
}
