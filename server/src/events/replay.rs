//! Replays recent batches that a subscriber has missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use zeromq::{RouterSendHalf, RouterSocket, SocketRecv, SocketSend, ZmqMessage, ZmqResult};

/// The batch number that marks the end of an answer.
const END: i64 = -1;
/// Maximum time for a client to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most recently published batches. Clones share one buffer.
#[derive(Clone, Debug)]
pub struct ReplayBuffer {
    batches: Arc<Mutex<VecDeque<(u64, Bytes)>>>,
    most: usize,
}

impl ReplayBuffer {
    /// Creates a buffer for up to `most` batches.
    pub fn new(most: usize) -> Self {
        ReplayBuffer { batches: Arc::default(), most }
    }

    /// Adds a batch with its number. A full buffer drops the oldest batch.
    pub fn push(&self, number: u64, payload: Bytes) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.push_back((number, payload));
        if batches.len() > self.most {
            batches.pop_front();
        }
    }

    /// Returns the batches from number `start` on.
    fn since(&self, start: u64) -> Vec<(u64, Bytes)> {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.iter().filter(|batch| batch.0 >= start).cloned().collect()
    }
}

/// Answers requests for batches, one at a time, until the socket fails.
pub async fn serve(socket: RouterSocket, buffer: ReplayBuffer) {
    let (sender, mut receiver) = socket.split();
    loop {
        match receiver.recv().await {
            Ok(request) => {
                let Some((envelope, start)) = read(request) else {
                    tracing::debug!("a request for KV events is malformed");
                    continue;
                };
                // A client that does not read must not delay other clients for long.
                match tokio::time::timeout(PATIENCE, answer(sender.clone(), envelope, buffer.since(start))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "a client of KV events has disconnected"),
                    Err(_) => tracing::debug!("a client of KV events does not read"),
                }
            }
            Err(error) => {
                tracing::warn!(%error, "KV events cannot be replayed any more");
                return;
            }
        }
    }
}

/// Splits a request into its envelope, which routes the answer, and the first requested number. The envelope begins
/// with the client's identity. A REQ socket adds an empty frame, and a DEALER socket may omit it.
fn read(request: ZmqMessage) -> Option<(Vec<Bytes>, u64)> {
    let mut frames = request.into_vec();
    let start: [u8; 8] = frames.pop()?.as_ref().try_into().ok()?;
    let is_envelope = match &frames[..] {
        [_] => true,
        [_, delimiter] => delimiter.is_empty(),
        _ => false,
    };
    is_envelope.then_some((frames, u64::from_be_bytes(start)))
}

async fn answer(mut sender: RouterSendHalf, envelope: Vec<Bytes>, batches: Vec<(u64, Bytes)>) -> ZmqResult<()> {
    let batches = batches.into_iter().map(|(number, payload)| (number.to_be_bytes(), payload));
    for (number, payload) in batches.chain([(END.to_be_bytes(), Bytes::new())]) {
        let mut message = ZmqMessage::from(payload);
        message.push_front(Bytes::copy_from_slice(&number));
        envelope.iter().rev().for_each(|frame| message.push_front(frame.clone()));
        sender.send(message).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn the_oldest_batches_are_given_up() {
        let buffer = ReplayBuffer::new(3);
        for number in [0, 1, 2, 4, 5] {
            buffer.push(number, Bytes::from(vec![number as u8]));
        }
        let numbers = |start| buffer.since(start).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!((numbers(0), numbers(3), numbers(6)), (vec![2, 4, 5], vec![4, 5], vec![]));
        let none = ReplayBuffer::new(0);
        none.push(0, Bytes::new());
        assert!(none.since(0).is_empty());
    }

    #[test]
    fn requests_come_with_and_without_a_delimiter() {
        let request = |frames: &[&'static [u8]]| {
            let frames: Vec<Bytes> = frames.iter().map(|frame| Bytes::from_static(frame)).collect();
            read(ZmqMessage::try_from(frames).unwrap()).map(|(envelope, start)| (envelope.len(), start))
        };
        assert_eq!(request(&[b"id", b"", b"\0\0\0\0\0\0\x01\x02"]), Some((2, 258)));
        assert_eq!(request(&[b"id", b"\0\0\0\0\0\0\0\x07"]), Some((1, 7)));
        for wrong in [&[&b"id"[..], b"", b"7"][..], &[b"id"], &[b"id", b"x", b"\0\0\0\0\0\0\0\0"]] {
            assert_eq!(request(wrong), None);
        }
    }
}
