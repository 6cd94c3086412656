//! The PUB socket, which keeps no more than a bound of what subscribers do not read.
//!
//! The library keeps all that a subscriber has not read for as long as it is connected. So what it keeps is counted, and
//! beyond the bound the socket is closed with all its connections, and opened again. Subscribers that read connect again by
//! themselves, as ZeroMQ's do, and see by the numbers what they have missed. The connections' tasks are in a runtime of their
//! own: to end it is the one way to be rid of a queue that nobody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Bytes;
use tokio::runtime::{Builder, Runtime};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::listen::listen;

/// Bytes that may be kept for subscribers, about.
const MOST: usize = 32 << 20;
/// Bytes that a message takes beside its payload, about.
const OVERHEAD: usize = 400;
/// The time in which the threads of a runtime end, once they are told to.
const END: Duration = Duration::from_secs(5);

/// The socket; it is closed when it is dropped.
#[derive(Debug)]
pub struct Broadcast {
    /// Where it listens, with the port that it got.
    pub address: String,
    /// Nothing if it could not be opened again.
    open: Option<Open>,
    /// Bytes that are kept for subscribers.
    held: Arc<AtomicUsize>,
}

/// A socket, and where its tasks run.
struct Open {
    socket: PubSocket,
    runtime: OwnRuntime,
}

/// A runtime that may be dropped by a task, as no other may be.
struct OwnRuntime(Option<Runtime>);

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open")
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A payload, which is counted for as long as it is kept for a subscriber.
struct Counted {
    payload: Bytes,
    held: Arc<AtomicUsize>,
}

impl Counted {
    fn new(payload: Bytes, held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(payload.len() + OVERHEAD, Ordering::Relaxed);
        Counted { payload, held: Arc::clone(held) }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(self.payload.len() + OVERHEAD, Ordering::Relaxed);
    }
}

impl Broadcast {
    /// Listens at an endpoint.
    ///
    /// # Errors
    /// If it makes no sense or cannot be had.
    pub async fn bind(endpoint: &str) -> Result<Self> {
        let (open, address) = open(endpoint).await?;
        Ok(Broadcast { address, open: Some(open), held: Arc::default() })
    }

    /// Sends a message to all subscribers of its topic. Does not wait for any of them.
    pub async fn send(&mut self, topic: Bytes, number: u64, payload: Bytes) {
        if self.held.load(Ordering::Relaxed) > MOST {
            tracing::warn!("a subscriber of KV events does not read: all connections are closed");
            self.close().await;
        }
        if self.open.is_none() {
            match open(&self.address).await {
                Ok((open, _)) => self.open = Some(open),
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
        let Some(Open { socket, .. }) = &mut self.open else { return };
        let mut message = ZmqMessage::from(Bytes::from_owner(Counted::new(payload, &self.held)));
        message.push_front(Bytes::copy_from_slice(&number.to_be_bytes()));
        message.push_front(topic);
        if let Err(error) = socket.send(message).await {
            tracing::debug!(%error, number, "a batch of KV events was not published");
        }
    }

    /// Closes the socket, and waits until its port is free and nothing is kept.
    async fn close(&mut self) {
        let Some(Open { socket, mut runtime }) = self.open.take() else { return };
        drop(socket);
        let end = move || runtime.0.take().into_iter().for_each(|runtime| runtime.shutdown_timeout(END));
        if let Err(error) = tokio::task::spawn_blocking(end).await {
            tracing::warn!(%error, "the connections of KV events did not end well");
        }
        self.held = Arc::default();
    }
}

/// Opens the socket in a runtime of its own.
async fn open(endpoint: &str) -> Result<(Open, String)> {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("kv-events").enable_all().build();
    let runtime = runtime.context("no thread to be had for KV events")?;
    let endpoint = endpoint.to_owned();
    let opening = runtime.spawn(async move {
        let mut socket = PubSocket::new();
        let address = listen(&mut socket, &endpoint).await?;
        anyhow::Ok((socket, address))
    });
    let runtime = OwnRuntime(Some(runtime));
    let (socket, address) = opening.await.context("the runtime of KV events has ended")??;
    Ok((Open { socket, runtime }, address))
}
