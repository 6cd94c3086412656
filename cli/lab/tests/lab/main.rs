//! Tests the laboratory as a user runs it.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod baselines;
mod commands;
mod figures;
mod floor;
mod paper;
mod published;
mod real_engine;
mod support;
