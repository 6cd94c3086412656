//! Implements `quire serve`, the APIs of OpenAI and Anthropic over one engine.
//!
//! ```text
//!  connection --hyper--> router --> api::completions --Work--> worker thread: Llm::step
//!      task              auth,       api::chat                      |
//!                        limits      |                              |
//!  client <---- JSON or events ------+<-------- a channel a job ----+
//! ```
//!
//! Every connection is a task of the runtime. The engine runs on one thread (`worker`) and has no HTTP code. A job is
//! dropped if its client disconnects or its time runs out. The worker cancels dropped jobs before the engine's next
//! step.
//!
//! [`worker`], [`events`], [`metrics`] and [`exposition`] are public for servers of other protocols, such as the Dynamo
//! worker in `scale/dynamo`.

mod adapters;
mod api;
mod app;
mod body;
mod connection;
mod error;
pub mod events;
pub mod exposition;
mod finished;
mod grammars;
mod guard;
mod history;
mod json;
mod listeners;
pub mod load;
pub mod metrics;
pub mod options;
mod overview;
mod page;
mod receive;
mod refused;
mod router;
pub mod server;
mod text;
pub mod worker;

pub use events::EventFormat;
pub use options::{AdapterOptions, KvEventsOptions, Progress, RequestLimits, ServeOptions};
pub use server::Server;
