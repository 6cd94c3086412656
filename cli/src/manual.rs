//! `quire man`: prints the manual page.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::Result;
use argh::{ArgsInfo, FlagInfo, FlagInfoKind, FromArgs};

use crate::command::{Command, Positionals, Program, Words};

/// The command `quire man`, which prints a manual page.
pub const COMMAND: Command = Command {
    name: "man",
    positionals: Positionals::None,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["quire man > ~/.local/share/man/man1/quire.1"],
    run,
};

/// Print quire's manual page, in roff.
#[derive(ArgsInfo, FromArgs)]
struct Args {}

fn run(words: &Words) -> Result<()> {
    words.own::<Args>()?;
    Ok(io::stdout().write_all(page(words.program).as_bytes())?)
}

fn page(program: &Program) -> String {
    let mut page = format!(".TH QUIRE 1 \"\" \"quire {}\" \"User Commands\"\n", env!("CARGO_PKG_VERSION"));
    page.push_str(".SH NAME\nquire \\- run and serve large language models\n.SH SYNOPSIS\n");
    for command in program.commands {
        let _ = writeln!(
            page,
            ".B {}\n{}[options]\n.br",
            escaped(&program.call(command)),
            escaped(command.positionals.shown())
        );
    }
    page.push_str(".SH COMMANDS\n");
    for command in program.commands {
        let _ = writeln!(page, ".SS {}\n{}", escaped(&program.call(command)), escaped((command.info)().description));
        page.extend(command.own_flags().iter().filter(|flag| flag.long != "--help").map(option));
        if command.runs_engine {
            page.push_str(".PP\nIt also has the engine options.\n");
        }
    }
    page.push_str(".SH ENGINE OPTIONS\nEvery command that runs a model has these.\n");
    page.extend(
        program
            .commands
            .iter()
            .find(|command| command.runs_engine)
            .into_iter()
            .flat_map(|c| c.engine_flags())
            .map(option),
    );
    page
}

fn option(flag: &FlagInfo<'static>) -> String {
    let short = flag.short.map_or(String::new(), |short| format!("-{short}, "));
    let value = match flag.kind {
        FlagInfoKind::Option { arg_name } => format!(" <{arg_name}>"),
        FlagInfoKind::Switch => String::new(),
    };
    let name = escaped(&format!("{short}{}{value}", flag.long));
    format!(".TP\n.B {name}\n{}\n", escaped(flag.description))
}

/// Escapes a text so that roff finds no commands in it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
