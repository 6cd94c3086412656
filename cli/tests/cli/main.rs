//! Tests the command as a user runs it.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod adapters;
mod chat;
mod commands;
mod device;
mod generate;
mod help;
mod memory;
mod models;
mod output;
#[cfg(feature = "cuda")]
mod plan;
mod prompts;
mod session;
mod shells;
mod support;
#[cfg(unix)]
mod terminal;
mod words;
