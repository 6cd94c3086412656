//! `quire`: continue text with a language model, serve it, measure it.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(&cli::QUIRE)
}
