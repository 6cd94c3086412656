//! `quire completions`: prints scripts that let shells complete commands and options.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::Result;
use argh::{ArgsInfo, FlagInfo, FlagInfoKind, FromArgs};

use crate::choices::{self, Offer};
use crate::command::{Command, Positionals, Program, Words};
use crate::suggest::shown;
use crate::words::UsageError;

/// The command.
pub const COMMAND: Command = Command {
    name: "completions",
    positionals: Positionals::Own("<bash|zsh|fish> "),
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["source <(quire completions bash)", "quire completions fish > ~/.config/fish/completions/quire.fish"],
    run,
};

/// Print a script that lets a shell complete quire's commands, options and their values.
#[derive(ArgsInfo, FromArgs)]
struct Args {}

fn run(words: &Words) -> Result<()> {
    words.own::<Args>()?;
    let positionals: Vec<&str> = words.positionals.iter().map(String::as_str).collect();
    let script = match positionals.as_slice() {
        ["bash"] => bash(words.program),
        ["zsh"] => zsh(words.program),
        ["fish"] => fish(words.program),
        [] => return Err(UsageError::new("completions needs a shell: bash, zsh or fish".into()).into()),
        [shell] => {
            return Err(
                UsageError::new(format!("there is no script for {}; give bash, zsh or fish", shown(shell))).into()
            );
        }
        _ => return Err(UsageError::new("completions takes one shell".into()).into()),
    };
    Ok(io::stdout().write_all(script.as_bytes())?)
}

/// Returns the second words of the `bench` commands.
fn second_words(program: &Program) -> Vec<&'static str> {
    program.commands.iter().filter_map(|command| command.name.strip_prefix("bench ")).collect()
}

fn names(command: &Command) -> String {
    let short = |flag: &FlagInfo<'_>| flag.short.map_or(String::new(), |short| format!(" -{short}"));
    command.flags().map(|flag| format!("{}{}", flag.long, short(flag))).collect::<Vec<_>>().join(" ")
}

/// Quotes a text in single quotes, which bash, zsh and fish all accept.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the branches of bash's `case` that set the completions of option values.
fn bash_values(command: &Command) -> String {
    let mut cases = String::new();
    for flag in command.flags() {
        let Some(offer) = choices::completions(command, flag) else { continue };
        let names = flag.short.map_or(flag.long.to_owned(), |short| format!("{}|-{short}", flag.long));
        let _ = match offer {
            Offer::Words { words, or_files } => {
                let only = if or_files { "" } else { "compopt +o default 2>/dev/null; " };
                write!(cases, " {names}) {only}values=\"{}\" ;;", words.join(" "))
            }
            Offer::Files | Offer::Folders => write!(cases, " {names}) values=\" \" ;;"),
            Offer::Nothing => write!(cases, " {names}) compopt +o default 2>/dev/null; values=\" \" ;;"),
        };
    }
    cases
}

fn bash(program: &Program) -> String {
    let (first, second) = (program.first_words().join(" "), second_words(program).join(" "));
    let mut cases = String::new();
    let mut commands = program.commands.to_vec();
    // The default command matches any line, so it comes last.
    commands.sort_by_key(|command| command.is_default());
    for command in commands {
        let pattern = if command.is_default() { "*".into() } else { format!("\"{} \"*", command.name) };
        let (words, values) = (names(command), bash_values(command));
        let _ = writeln!(cases, "        {pattern}) words=\"{words}\"; case \"$option\" in{values} esac ;;");
    }
    format!(
        r#"_quire() {{
    local words values="" line="${{COMP_WORDS[*]:1:COMP_CWORD}}"
    local word="${{COMP_WORDS[COMP_CWORD]}}" option="${{COMP_WORDS[COMP_CWORD-1]}}"
    # Bash splits --name=value into three words.
    if [[ $word == = ]]; then
        word=""
    elif [[ $option == = ]]; then
        option="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "$line" in
{cases}    esac
    if [[ $values ]]; then
        words="$values"
    elif [[ $word != -* ]]; then
        words=""
        [[ $COMP_CWORD == 1 ]] && words="{first} {models}"
        [[ $COMP_CWORD == 2 && ${{COMP_WORDS[1]}} == bench ]] && words="{second}"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _quire quire
"#,
        models = choices::models().join(" ")
    )
}

fn zsh(program: &Program) -> String {
    let mut cases = String::new();
    let mut commands = program.commands.to_vec();
    // The default command matches any line, so it comes last.
    commands.sort_by_key(|command| command.is_default());
    for command in commands {
        let specs: Vec<String> = command.flags().flat_map(|flag| zsh_specs(command, flag)).collect();
        let pattern = if command.is_default() { "*".into() } else { format!("'{} '*", command.name) };
        let _ = writeln!(cases, "        {pattern}) _arguments -S '*:file:_files' {} ;;", specs.join(" "));
    }
    let (first, second) = (program.first_words().join(" "), second_words(program).join(" "));
    format!(
        r#"#compdef quire
_quire() {{
    if [[ $words[CURRENT] != -* ]]; then
        (( CURRENT == 2 )) && compadd {first}
        (( CURRENT == 3 )) && [[ $words[2] == bench ]] && compadd {second} && return
    fi
    case "$words[2,CURRENT]" in
{cases}    esac
}}
compdef _quire quire
"#
    )
}

/// Returns the arguments of zsh's `_arguments` for an option, one for each of its names.
fn zsh_specs(command: &Command, flag: &FlagInfo<'static>) -> Vec<String> {
    let meaning: String = flag.description.replace(['[', ']'], "").replace(':', "\\:");
    let value = match (choices::completions(command, flag), &flag.kind) {
        (Some(offer), FlagInfoKind::Option { arg_name }) => {
            let action = match offer {
                Offer::Words { words, or_files: false } => format!("({})", words.join(" ")),
                Offer::Words { words, or_files: true } => {
                    format!("{{_alternative \"words:{arg_name}:({})\" \"files:file:_files\"}}", words.join(" "))
                }
                Offer::Files => "_files".into(),
                Offer::Folders => "_files -/".into(),
                Offer::Nothing => " ".into(),
            };
            format!(":{arg_name}:{action}")
        }
        _ => String::new(),
    };
    let short = flag.short.map(|short| format!("-{short}"));
    let names = short.into_iter().chain([flag.long.to_owned()]);
    names.map(|name| quoted(&format!("*{name}[{meaning}]{value}"))).collect()
}

fn fish(program: &Program) -> String {
    let mut script = String::from("complete -c quire -e\n");
    let (first, second) = (program.first_words().join(" "), second_words(program).join(" "));
    let _ = writeln!(script, "complete -c quire -n __fish_use_subcommand -a {}", quoted(&first));
    let among_bench = format!("__fish_seen_subcommand_from bench; and not __fish_seen_subcommand_from {second}");
    let _ = writeln!(script, "complete -c quire -f -n {} -a {}", quoted(&among_bench), quoted(&second));
    for command in program.commands {
        let condition = match command.name.strip_prefix("bench ") {
            Some(name) => format!("__fish_seen_subcommand_from bench; and __fish_seen_subcommand_from {name}"),
            None if command.is_default() => {
                let others: Vec<&str> =
                    program.first_words().into_iter().filter(|word| *word != command.name).collect();
                format!("not __fish_seen_subcommand_from {}", others.join(" "))
            }
            None => format!("not __fish_seen_subcommand_from bench; and __fish_seen_subcommand_from {}", command.name),
        };
        for flag in command.flags() {
            let short = flag.short.map_or(String::new(), |short| format!(" -s {short}"));
            let value = match choices::completions(command, flag) {
                None => String::new(),
                Some(Offer::Words { words, or_files }) => {
                    let files = if or_files { "-F" } else { "-f" };
                    format!(" -r {files} -a {}", quoted(&words.join(" ")))
                }
                Some(Offer::Files) => " -r -F".into(),
                Some(Offer::Folders) => " -x -a '(__fish_complete_directories)'".into(),
                Some(Offer::Nothing) => " -x".into(),
            };
            let (condition, long) = (quoted(&condition), flag.long.trim_start_matches('-'));
            let meaning = quoted(flag.description);
            let _ = writeln!(script, "complete -c quire -n {condition} -l {long}{short}{value} -d {meaning}");
        }
    }
    script
}
