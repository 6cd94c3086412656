//! Turns command-line options into prompts, sampling parameters and grammars.

use std::io::{self, IsTerminal, Read};

use anyhow::{Context, Result, bail};
use engine::Prompt;
use engine::tools::config::GenerationConfig;
use engine::tools::constraint::{Grammar, exact_numbers};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingOptions, SamplingParams};

use crate::args::Args;
use crate::words::UsageError;

/// Tokens per output if neither the options nor the model set a limit.
const MAX_TOKENS: usize = 256;
/// Maximum bytes read from standard input.
const MAX_INPUT: u64 = 256 << 20;

/// Returns the prompts in the order of the options: texts, lines of the file, token ids. If no option gives one, text
/// piped to standard input is the prompt.
pub fn prompts(args: &Args) -> Result<Vec<Prompt>> {
    let grammars = args.json_schema.iter().chain(&args.grammar).filter(|file| *file == "-").count();
    let readers = args.prompt.iter().chain(&args.prompts).filter(|name| *name == "-").count();
    if readers + grammars > 1 {
        let why = "standard input can be read once: by --prompt -, --prompts -, --json-schema - or --grammar -";
        return Err(UsageError::new(why.into()).into());
    }
    let text = |prompt: &String| match prompt.as_str() {
        "-" => match piped("the prompt")? {
            Some(text) => Ok(Prompt::Text(text)),
            None => Err(UsageError::new("nothing to continue: standard input is empty".into()).into()),
        },
        _ => Ok(Prompt::Text(prompt.clone())),
    };
    let mut prompts: Vec<Prompt> = args.prompt.iter().map(text).collect::<Result<_>>()?;
    if let Some(file) = &args.prompts {
        let text = if file == "-" {
            standard_input("prompts")?
        } else {
            std::fs::read_to_string(file).with_context(|| format!("cannot read prompts from {file}"))?
        };
        prompts.extend(text.lines().filter(|line| !line.is_empty()).map(|line| Prompt::Text(line.into())));
    }
    prompts.extend(args.prompt_ids.iter().map(|ids| Prompt::Tokens(ids.0.clone())));
    if let (true, Some(file)) = (prompts.is_empty(), &args.prompts) {
        bail!("nothing to continue: {file} has no line with a prompt");
    }
    if prompts.is_empty() && grammars == 0 && !io::stdin().is_terminal() {
        prompts.extend(piped("the prompt")?.map(Prompt::Text));
    }
    if prompts.is_empty() {
        let ways = "give --prompt (-p), --prompts or --prompt-ids, or pipe a text to standard input";
        return Err(UsageError::new(format!("nothing to continue: {ways} (quire --help shows all options)")).into());
    }
    Ok(prompts)
}

/// Reads standard input without the line break at its end. `None` if it is empty.
fn piped(what: &str) -> Result<Option<String>> {
    let text = standard_input(what)?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn standard_input(what: &str) -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(MAX_INPUT + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {what} from standard input"))?;
    if text.len() as u64 > MAX_INPUT {
        bail!("standard input is larger than {} MiB", MAX_INPUT >> 20);
    }
    Ok(text)
}

/// Returns the sampling parameters. The model's `defaults` fill in unset options.
pub fn sampling(args: &Args, defaults: &GenerationConfig) -> Result<SamplingParams> {
    let n = args.n.unwrap_or(1);
    let beam = args.beam_width.map(|width| Beam {
        width,
        length_penalty: args.length_penalty.unwrap_or(1.0),
        early_stopping: args.early_stopping.unwrap_or(EarlyStopping::No),
    });
    if beam.is_none() && (args.length_penalty.is_some() || args.early_stopping.is_some()) {
        return Err(UsageError::new("--length-penalty and --early-stopping need --beam-width".into()).into());
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
    params.validate().map_err(in_options)?;
    let filters = params.top_k != 0 || params.top_p != 1.0 || params.min_p != 0.0;
    if filters && params.temperature == 0.0 && args.temperature.is_none() {
        // These options ask for sampling, so greedy text would not be the answer that was asked for.
        let why = "--top-k, --top-p and --min-p need --temperature, because this model's default is greedy";
        return Err(UsageError::new(why.into()).into());
    }
    Ok(params)
}

/// Returns the grammar of outputs and the option that sets it, if any.
///
/// # Errors
/// If several options set a grammar, or if a file cannot be read or is not JSON.
pub fn grammar(args: &Args) -> Result<Option<(&'static str, Grammar)>> {
    let read = |file: &String, what: &str| match file.as_str() {
        "-" => standard_input(what),
        _ => std::fs::read_to_string(file).with_context(|| format!("cannot read {file}")),
    };
    let mut asked = Vec::new();
    if let Some(file) = &args.json_schema {
        let name = if file == "-" { "standard input" } else { file };
        let text = read(file, "the schema")?;
        let schema = serde_json::from_str(&exact_numbers(&text)).with_context(|| format!("{name} is not JSON"))?;
        asked.push(("json-schema", Grammar::JsonSchema(schema)));
    }
    if let Some(regex) = &args.regex {
        asked.push(("regex", Grammar::Regex(regex.clone())));
    }
    if let Some(file) = &args.grammar {
        asked.push(("grammar", Grammar::Lark(read(file, "the grammar")?)));
    }
    if let [(first, _), (second, _), ..] = asked.as_slice() {
        return Err(UsageError::new(format!("--{first} and --{second} cannot be combined")).into());
    }
    Ok(asked.pop())
}

/// Converts the engine's refusal of a request. Option names replace the names of its fields.
fn in_options(error: engine::Error) -> UsageError {
    UsageError::new(match error {
        engine::Error::Request(refusal) => format!("invalid request: {}", refusal.why.replace('_', "-")),
        other => other.to_string(),
    })
}
