//! `lab`: experiments with the engine, its kernels and the paper. The product is `quire`.

mod fake_model;
mod floor;
mod kernels;
mod paper;
mod prefix;
mod sharing;
mod step;
mod trace;

use std::process::ExitCode;

use cli::command::Program;

/// The program.
static LAB: Program = Program {
    name: "lab",
    about: "Compute the cost of a model, measure what sharing memory saves, redraw the paper's figures, profile kernels.",
    commands: &[
        &floor::COMMAND,
        &sharing::COMMAND,
        &prefix::COMMAND,
        &trace::COMMAND,
        &paper::COMMAND,
        &kernels::COMMAND,
    ],
    moved: &[],
};

fn main() -> ExitCode {
    cli::main(&LAB)
}
