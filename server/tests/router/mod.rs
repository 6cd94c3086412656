//! A router that follows a server's KV events and tracks its cache.

#![allow(dead_code)] // not every test uses all of it

use std::collections::BTreeMap;

use serde_json::Value;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// An event in either encoding.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Stored { medium: String, hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u64>, block_size: usize },
    Removed { medium: String, hashes: Vec<u64> },
    Cleared,
}

/// A batch: its time, its events, and the rank of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub time: f64,
    pub events: Vec<Event>,
    pub rank: Option<u64>,
}

/// Decodes a batch from Quire or vLLM, with events as maps or as arrays. Unknown fields are ignored.
pub fn decode(payload: &[u8]) -> Batch {
    let batch: Value = rmp_serde::from_slice(payload).unwrap();
    let events = batch[1].as_array().unwrap().iter().map(event).collect();
    Batch { time: batch[0].as_f64().unwrap(), events, rank: batch[2].as_u64() }
}

fn event(event: &Value) -> Event {
    let get = |name: &str, at: usize| if event.is_array() { &event[at] } else { &event[name] };
    let numbers = |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<u64>>();
    let hashes = || numbers(get("block_hashes", 1));
    let medium = |at| get("medium", at).as_str().unwrap().to_owned();
    match get("type", 0).as_str().unwrap() {
        "BlockStored" => Event::Stored {
            medium: medium(6),
            hashes: hashes(),
            parent: get("parent_block_hash", 2).as_u64(),
            tokens: numbers(get("token_ids", 3)),
            block_size: get("block_size", 4).as_u64().unwrap() as usize,
        },
        "BlockRemoved" => Event::Removed { medium: medium(2), hashes: hashes() },
        "AllBlocksCleared" => Event::Cleared,
        other => panic!("there is no event {other}"),
    }
}

/// The blocks that a router knows in one medium.
pub type Known = BTreeMap<u64, (Option<u64>, Vec<u64>)>;

/// The state of a router.
#[derive(Clone, Debug, Default)]
pub struct Router {
    /// The cached blocks by hash, each with its parent's hash and its tokens.
    pub known: Known,
    /// The blocks in the swap space, likewise.
    pub swapped: Known,
    /// The number of the next batch, if none is missed.
    pub next: u64,
    /// Number of missed batches.
    pub missed: u64,
    /// Number of removed hashes.
    pub removed: usize,
}

impl Router {
    /// Handles the next batch. Ignores a batch that was already handled.
    pub fn take(&mut self, number: u64, payload: &[u8]) {
        if number < self.next {
            return;
        }
        self.missed += number - self.next;
        self.next = number + 1;
        for event in decode(payload).events {
            match event {
                Event::Stored { medium, hashes, mut parent, tokens, block_size } => {
                    assert_eq!(tokens.len(), hashes.len() * block_size);
                    for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(block_size)) {
                        let before = self.medium(&medium).insert(hash, (parent.replace(hash), tokens.to_vec()));
                        assert!(before.is_none(), "{hash} is stored twice");
                    }
                }
                Event::Removed { medium, hashes } => {
                    for hash in hashes {
                        self.removed += 1;
                        let before = self.medium(&medium).remove(&hash);
                        assert!(before.is_some() || self.missed > 0, "{hash} was not stored");
                    }
                }
                Event::Cleared => [&mut self.known, &mut self.swapped].into_iter().for_each(Known::clear),
            }
        }
    }

    fn medium(&mut self, name: &str) -> &mut Known {
        match name {
            "GPU" => &mut self.known,
            "CPU" => &mut self.swapped,
            other => panic!("there is no medium {other}"),
        }
    }

    /// Returns how many of a prompt's first tokens are cached, judged by the tokens.
    pub fn cached(&self, prompt: &[u64]) -> usize {
        let (mut parent, mut at) = (None, 0);
        loop {
            let next = self.known.iter().find(|(_, (of, tokens))| *of == parent && prompt[at..].starts_with(tokens));
            let Some((hash, (_, tokens))) = next else { return at };
            (parent, at) = (Some(*hash), at + tokens.len());
        }
    }
}

/// Requests the batches from number `start` on. With `delimiter`, sends an empty frame as a REQ socket does. A DEALER
/// socket may omit it.
pub async fn replay(endpoint: &str, start: u64, delimiter: bool) -> Vec<(u64, Vec<u8>)> {
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await.unwrap();
    let mut request = ZmqMessage::from(start.to_be_bytes().to_vec());
    if delimiter {
        request.push_front(Default::default());
    }
    socket.send(request).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let mut frames = socket.recv().await.unwrap().into_vec();
        if delimiter {
            assert!(frames.remove(0).is_empty());
        }
        let [number, payload] = &frames[..] else { panic!("{} frames", frames.len()) };
        let number = i64::from_be_bytes(number[..].try_into().unwrap());
        if number == -1 {
            assert!(payload.is_empty());
            return batches;
        }
        batches.push((number as u64, payload.to_vec()));
    }
}
