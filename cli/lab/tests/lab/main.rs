//! Tests the laboratory as a user runs it.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod commands;
mod floor;
mod paper;
mod support;
