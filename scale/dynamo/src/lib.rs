//! Quire as a worker of NVIDIA Dynamo.
//!
//! ```text
//!  Dynamo's frontend --tokens, options--> QuireEngine::generate --Work--> server::worker: Llm::step
//!   HTTP, tokenizer,                           |                                |
//!   router       <------- tokens ------------ output <---- a channel a job -----+
//!      ^                                                                        |
//!      +------- KV events (ZeroMQ, server::events), load (server::load) --------+
//! ```
//!
//! The frontend handles all text. The engine's thread, its queue and its recovery after a failed step are the same as
//! in `quire serve`.

pub mod args;
pub mod engine;
mod failure;
mod load;
mod output;
pub mod request;
