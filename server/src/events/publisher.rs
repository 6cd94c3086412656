//! Publishes events on their sockets.

use anyhow::Result;
use axum::body::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zeromq::{RouterSocket, Socket};

use super::broadcast::Broadcast;
use super::format::{KvEvent, encode, events};
use super::listen::listen;
use super::replay::{self, ReplayBuffer};
use super::{Batch, EventFormat, EventSource, News};
use crate::metrics::Metrics;
use crate::options::KvEventsOptions;

/// The sockets of KV events. Dropping it closes them.
#[derive(Debug)]
pub struct Publisher {
    /// The endpoint at which events are published.
    pub address: String,
    /// The endpoint at which subscribers can request missed batches, if any.
    pub replay: Option<String>,
    /// The tasks end when this set is dropped.
    _tasks: JoinSet<()>,
}

impl Publisher {
    /// Opens the sockets and publishes the events of the returned source. Dropped batches are counted in `metrics`.
    ///
    /// # Errors
    /// If an endpoint is malformed or a socket cannot listen on it.
    pub async fn bind(options: &KvEventsOptions, metrics: &Metrics) -> Result<(Self, EventSource)> {
        let (source, batches) = EventSource::new(metrics.dropped_batches.clone());
        let mut tasks = JoinSet::new();
        let buffer = ReplayBuffer::new(if options.replay.is_some() { options.buffer } else { 0 });
        let replay = match &options.replay {
            Some(endpoint) => {
                let mut socket = RouterSocket::new();
                let address = listen(&mut socket, endpoint).await?;
                tasks.spawn(replay::serve(socket, buffer.clone()));
                Some(address)
            }
            None => None,
        };
        let broadcast = Broadcast::bind(&options.endpoint).await?;
        let address = broadcast.address.clone();
        tasks.spawn(publish(broadcast, batches, options.topic.clone().into(), options.format, buffer));
        Ok((Publisher { address, replay, _tasks: tasks }, source))
    }
}

/// Publishes batches until the source is dropped.
async fn publish(
    mut broadcast: Broadcast,
    mut batches: mpsc::Receiver<Batch>,
    topic: Bytes,
    format: EventFormat,
    buffer: ReplayBuffer,
) {
    while let Some(Batch { number, time, news }) = batches.recv().await {
        let events = match news {
            News::Changes(changes, groups) => events(changes, &groups),
            News::Cleared => vec![KvEvent::Cleared],
        };
        let payload = match encode(time, &events, format) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => {
                tracing::error!(%error, "KV events cannot be encoded");
                continue;
            }
        };
        // Stores the batch first, so that every published batch can be replayed.
        buffer.push(number, payload.clone());
        broadcast.send(topic.clone(), number, payload).await;
    }
}
