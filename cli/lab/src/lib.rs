//! `lab`: experiments with the engine, its kernels and the paper. The product is `quire`.

pub mod bound;
pub mod chart;
mod cpu_clock;
mod eviction;
mod fake_model;
pub mod figure;
pub mod figures;
pub mod fitted;
mod floor;
pub mod jobs;
mod kernels;
pub mod laboratory;
pub mod page;
mod paper;
mod prefix;
pub mod real_engine;
mod sharing;
mod step;
mod trace;

use cli::command::Program;

/// The program.
pub static LAB: Program = Program {
    name: "lab",
    about: "Compute the cost of a model, measure what sharing memory saves, redraw the paper's figures, profile kernels.",
    commands: &[
        &floor::COMMAND,
        &sharing::COMMAND,
        &prefix::COMMAND,
        &eviction::COMMAND,
        &trace::COMMAND,
        &paper::COMMAND,
        &kernels::COMMAND,
    ],
    moved: &[],
};
