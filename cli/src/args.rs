//! The options of the default command, which continues text.

use argh::{ArgsInfo, FromArgs};
use engine::EarlyStopping;

use crate::values::{count, number, seed};

/// Continue text with a language model, on this machine.
#[derive(ArgsInfo, FromArgs, Debug)]
pub struct Args {
    /// text to continue (- reads standard input) (repeatable)
    #[argh(option, short = 'p', arg_name = "text")]
    pub prompt: Vec<String>,
    /// file with one prompt per line (- reads standard input)
    #[argh(option, arg_name = "file")]
    pub prompts: Option<String>,
    /// prompt as token ids, such as 5,6,7 (repeatable)
    #[argh(option, arg_name = "ids", from_str_fn(token_ids))]
    pub prompt_ids: Vec<TokenIds>,

    /// treat prompts as a user's messages (default for chat models)
    #[argh(switch)]
    pub chat: bool,
    /// continue prompts as plain text (default for other models)
    #[argh(switch)]
    pub raw: bool,
    /// system message (implies --chat)
    #[argh(option, arg_name = "text")]
    pub system: Option<String>,
    /// file with a chat template instead of the model's (implies --chat)
    #[argh(option, arg_name = "file")]
    pub chat_template: Option<String>,

    /// maximum tokens per output (the model's default, else 256)
    #[argh(option, short = 'n', arg_name = "n", from_str_fn(count))]
    pub max_tokens: Option<usize>,
    /// end an output before this text (repeatable)
    #[argh(option, arg_name = "text")]
    pub stop: Vec<String>,
    /// constrain outputs to JSON that satisfies the schema in a file (- reads standard input)
    #[argh(option, arg_name = "file")]
    pub json_schema: Option<String>,
    /// constrain whole outputs to a regular expression
    #[argh(option, arg_name = "r")]
    pub regex: Option<String>,
    /// constrain outputs to the Lark grammar in a file (- reads standard input)
    #[argh(option, arg_name = "file")]
    pub grammar: Option<String>,
    /// generate past end-of-sequence tokens
    #[argh(switch)]
    pub ignore_eos: bool,

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
    /// penalise tokens already in the prompt or output, 1 is off
    #[argh(option, arg_name = "x", from_str_fn(number))]
    pub repetition_penalty: Option<f32>,
    /// penalise tokens already in the output, -2 to 2 (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub presence_penalty: f32,
    /// penalise tokens by their count in the output, -2 to 2 (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub frequency_penalty: f32,
    /// random seed, for reproducible sampling
    #[argh(option, arg_name = "s", from_str_fn(seed))]
    pub seed: Option<u64>,

    /// outputs per prompt (1)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub n: Option<usize>,
    /// generate this many outputs, return the n with the best mean logprob
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub best_of: Option<usize>,
    /// beam search with k beams, returning the best --n
    #[argh(option, arg_name = "k", from_str_fn(count))]
    pub beam_width: Option<usize>,
    /// beam score = sum of logprobs / length^x (1)
    #[argh(option, arg_name = "x", from_str_fn(number))]
    pub length_penalty: Option<f32>,
    /// stop once k beams finish: true (if given without a value), false or never (false)
    #[argh(option, arg_name = "when", from_str_fn(early_stopping))]
    pub early_stopping: Option<EarlyStopping>,

    /// print one JSON object per prompt, one per line
    #[argh(switch)]
    pub json: bool,
    /// report each token's logprob and the k most likely tokens
    #[argh(option, arg_name = "k", from_str_fn(count))]
    pub logprobs: Option<usize>,
    /// print times, rates and KV cache use at the end
    #[argh(switch)]
    pub stats: bool,
    /// write KV block events to this file as JSON lines
    #[argh(option, arg_name = "file")]
    pub trace_kv: Option<String>,
    /// describe the model and its setup on standard error
    #[argh(switch)]
    pub verbose: bool,

    /// print the version
    #[argh(switch, short = 'V')]
    pub version: bool,
}

/// The token ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

fn token_ids(s: &str) -> Result<TokenIds, String> {
    let id = |part: &str| part.trim().parse().map_err(|_| format!("{part:?} is not a token id"));
    s.split(',').map(id).collect::<Result<_, _>>().map(TokenIds)
}

fn early_stopping(s: &str) -> Result<EarlyStopping, String> {
    match s {
        "true" => Ok(EarlyStopping::Yes),
        "false" => Ok(EarlyStopping::No),
        "never" => Ok(EarlyStopping::Never),
        _ => Err(format!("{s:?} is neither true, false nor never")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use engine::DType;

    use super::*;
    use crate::command::Words;
    use crate::commands::QUIRE;
    use crate::generate::COMMAND;

    #[test]
    fn token_ids_are_separated_by_commas() {
        assert_eq!(token_ids("5, 6,7"), Ok(TokenIds(vec![5, 6, 7])));
        assert!(token_ids("").is_err() && token_ids("5,,6").is_err() && token_ids("-1").is_err());
    }

    #[test]
    fn options_and_repeats_are_read() {
        let words = ["--prompt", "a", "-p", "b", "--top-k=5", "--dtype", "bf16", "-n4"].map(str::to_owned);
        let words = Words::sort(&QUIRE, &COMMAND, &words).unwrap();
        let (args, engine) = (words.own::<Args>().unwrap(), words.engine().unwrap());
        assert_eq!((args.prompt, args.top_k, args.max_tokens), (vec!["a".into(), "b".into()], Some(5), Some(4)));
        assert_eq!(engine.dtype, Some(DType::Bf16));
        let words = Words::sort(&QUIRE, &COMMAND, &["--temperature", "warm"].map(str::to_owned)).unwrap();
        assert_eq!(
            words.own::<Args>().unwrap_err().to_string(),
            "--temperature: \"warm\" is not a number (quire --help shows all options)"
        );
    }
}
