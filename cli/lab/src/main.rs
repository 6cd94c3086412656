//! `lab`: experiments with the engine, its kernels and the paper. The product is `quire`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(&lab::LAB)
}
