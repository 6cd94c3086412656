//! The endpoints and their fields.

pub mod adapters;
pub mod answer;
pub mod answer_form;
pub mod answer_grammar;
pub mod chat;
pub mod completions;
pub mod conversation;
pub mod debug;
pub mod decoding;
pub mod dialogue;
pub mod embeddings;
pub mod inert;
pub mod logprobs;
pub mod message;
pub mod messages;
pub mod operate;
pub mod prompt;
pub mod responses;
pub mod stop;
pub mod stream;
pub mod structured;
pub mod tokenize;
pub mod tools;
