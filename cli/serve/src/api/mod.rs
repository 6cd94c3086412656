//! The endpoints, a file for each group.

pub mod answer;
pub mod chat;
pub mod completions;
pub mod debug;
pub mod decoding;
pub mod logprobs;
pub mod operate;
pub mod stream;
pub mod tokenize;
