//! The PUB socket, with a bound on the data queued for slow subscribers.
//!
//! The library queues everything that a connected subscriber has not read. This module therefore counts the queued
//! bytes. Beyond the bound it closes the socket with all its connections and opens it again. ZeroMQ subscribers that
//! still read reconnect by themselves and see from the batch numbers what they missed. The tasks of the connections run
//! in a separate runtime, because shutting down the runtime is the only way to free a queue that a subscriber does not
//! read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Bytes;
use tokio::runtime::{Builder, Runtime};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use super::listen::listen;

/// Approximate maximum of bytes queued for subscribers.
const MOST: usize = 32 << 20;
/// Approximate bytes that a queued message needs in addition to its payload.
const OVERHEAD: usize = 400;
/// Time for the threads of a runtime to end after a shutdown.
const END: Duration = Duration::from_secs(5);

/// The PUB socket. Dropping it closes the socket.
#[derive(Debug)]
pub struct Broadcast {
    /// The address it listens on, with its actual port.
    pub address: String,
    /// The open socket. `None` if it could not be opened again.
    open: Option<Open>,
    /// Bytes queued for subscribers.
    held: Arc<AtomicUsize>,
}

/// A socket, and the runtime of its tasks.
struct Open {
    socket: PubSocket,
    runtime: OwnRuntime,
}

/// A runtime that a task may drop. A plain `Runtime` would panic there.
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

/// A payload that counts as queued until it is dropped.
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
    /// Listens on an endpoint.
    ///
    /// # Errors
    /// If the endpoint is malformed or the socket cannot listen on it.
    pub async fn bind(endpoint: &str) -> Result<Self> {
        let (open, address) = open(endpoint).await?;
        Ok(Broadcast { address, open: Some(open), held: Arc::default() })
    }

    /// Sends a message to all subscribers of its topic without waiting for them.
    pub async fn send(&mut self, topic: Bytes, number: u64, payload: Bytes) {
        if self.held.load(Ordering::Relaxed) > MOST {
            tracing::warn!("a subscriber of KV events does not read: closing all connections");
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

    /// Closes the socket, and waits until its port is free and its queues are dropped.
    async fn close(&mut self) {
        let Some(Open { socket, mut runtime }) = self.open.take() else { return };
        drop(socket);
        let end = move || runtime.0.take().into_iter().for_each(|runtime| runtime.shutdown_timeout(END));
        if let Err(error) = tokio::task::spawn_blocking(end).await {
            tracing::warn!(%error, "the connections of KV events did not close cleanly");
        }
        self.held = Arc::default();
    }
}

/// Opens the socket in a new runtime.
async fn open(endpoint: &str) -> Result<(Open, String)> {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("kv-events").enable_all().build();
    let runtime = runtime.context("cannot start a thread for KV events")?;
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
