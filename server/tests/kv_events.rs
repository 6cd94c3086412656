//! KV events over sockets: a router rebuilds the contents of a server's cache from them.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;
mod router;

use common::TestServer;
use common::poisoned::{POISON, poisoned};
use engine::ModelFiles;
use engine::{Llm, Options, SchedulerOptions};
use futures_util::FutureExt;
use router::{Batch, Event, Router, decode, replay};
use serde_json::{Value, json};
use server::{EventFormat, KvEventsOptions, ServeOptions, Server};
use zeromq::{Socket, SocketRecv, SubSocket};

const COMPLETIONS: &str = "/v1/completions";
const TOPIC: &str = "kv@pod-1@opt-story-3m";
/// An endpoint on this machine with a free port.
const FREE: &str = "tcp://127.0.0.1:0";

fn publishing(buffer: usize, format: EventFormat) -> ServeOptions {
    let events =
        KvEventsOptions { topic: TOPIC.into(), replay: Some(FREE.into()), buffer, format, ..KvEventsOptions::at(FREE) };
    ServeOptions { kv_events: Some(events), ..ServeOptions::default() }
}

/// Returns options for the bundled model with a cache of `blocks` blocks.
fn small(blocks: usize) -> Options {
    let block = Llm::load(&ModelFiles::bundled(), &Options::default()).unwrap().kv_layout().block_bytes();
    Options { kv_memory: Some(blocks * block), ..Options::default() }
}

/// Returns a prompt of token ids with one of three beginnings and its own end.
fn prompt(i: u64) -> Vec<u64> {
    let begin = (0..20 + 13 * (i % 3)).map(|at| 100 + (at * (1 + i % 3)) % 97);
    begin.chain((0..5 + i % 40).map(|at| 200 + (at * (3 + i) + i) % 89)).collect()
}

/// Sends prompts, several at a time.
async fn load(server: &TestServer, prompts: std::ops::Range<u64>) {
    let bodies: Vec<Value> = prompts
        .map(|i| json!({"prompt": prompt(i), "max_tokens": 3 + i % 30, "n": 1 + i % 3, "seed": i, "ignore_eos": true}))
        .collect();
    for some in bodies.chunks(5) {
        let sent = some.iter().map(|body| tokio::spawn(server.client.post(server.url(COMPLETIONS)).json(body).send()));
        for answer in sent.collect::<Vec<_>>() {
            assert_eq!(answer.await.unwrap().unwrap().status(), 200);
        }
    }
    server.wait_for_metric("quire:kv_blocks_used", 0.0).await;
}

/// Returns the cached blocks and the cached swap blocks in `/debug/state`. No request may be running.
async fn cached_blocks(server: &TestServer) -> (u64, u64) {
    let state = server.get_json("/debug/state").await;
    assert!(state["running"] == json!([]) && state["waiting"] == json!([]), "{state}");
    let cached = state["cached"].as_array().unwrap().iter().map(|row| row[1].as_u64().unwrap()).sum();
    (cached, state["swap_cached"].as_u64().unwrap())
}

/// Returns the same numbers as a router knows them.
fn known_blocks(router: &Router) -> (u64, u64) {
    (router.known.len() as u64, router.swapped.len() as u64)
}

async fn subscribed(endpoint: &str, topic: &str) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(endpoint).await.unwrap();
    socket.subscribe(topic).await.unwrap();
    socket
}

/// Returns the number and the bytes of the next batch.
async fn next(socket: &mut SubSocket) -> (u64, Vec<u8>) {
    let frames = socket.recv().await.unwrap().into_vec();
    let [topic, number, payload] = &frames[..] else { panic!("{} frames", frames.len()) };
    assert_eq!(topic, TOPIC.as_bytes());
    (u64::from_be_bytes(number[..].try_into().unwrap()), payload.to_vec())
}

async fn start(engine: &Options, options: ServeOptions) -> (TestServer, String, String) {
    TestServer::publishing(&ModelFiles::bundled(), engine, options).await
}

#[tokio::test]
async fn a_router_rebuilds_the_set_of_cached_blocks() {
    for format in [EventFormat::Map, EventFormat::Array] {
        let (server, events, missed) = start(&small(40), publishing(10_000, format)).await;
        let mut subscriber = subscribed(&events, "kv@").await;
        // The subscription may miss the first batches, so the test sends more until one arrives.
        let mut sent = 0;
        let first = loop {
            load(&server, sent..sent + 5).await;
            sent += 5;
            if let Some(first) = next(&mut subscriber).now_or_never() {
                break first;
            }
        };
        load(&server, 1000..1060).await;

        let replayed = replay(&missed, 0, true).await;
        assert_eq!(replay(&missed, 0, false).await, replayed);
        let mut router = Router::default();
        replayed.iter().for_each(|(number, payload)| router.take(*number, payload));
        assert_eq!((router.missed, router.next), (0, replayed.len() as u64));
        assert!(router.removed > 0, "the cache is too small for all");
        assert_eq!(known_blocks(&router), cached_blocks(&server).await);
        assert!(!router.swapped.is_empty(), "evicted blocks go to the swap space");

        // The replayed batches equal the published ones, from the first received batch on.
        let mut live = first;
        let mut follower = Router::default();
        replayed[..live.0 as usize].iter().for_each(|(number, payload)| follower.take(*number, payload));
        loop {
            assert_eq!(live, replayed[live.0 as usize]);
            follower.take(live.0, &live.1);
            if follower.next == router.next {
                break;
            }
            live = next(&mut subscriber).await;
        }
        assert_eq!((follower.missed, &follower.known, &follower.swapped), (0, &router.known, &router.swapped));

        // The last prompt is still cached up to its last whole block. An unknown prompt is not cached.
        let tokens = prompt(1059);
        assert_eq!(router.cached(&tokens), tokens.len() / 16 * 16);
        assert_eq!(router.cached(&[7; 64]), 0);
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_late_router_knows_which_batches_it_missed() {
    let (server, _, missed) = start(&small(40), publishing(4, EventFormat::Map)).await;
    load(&server, 0..20).await;
    let batches = replay(&missed, 0, true).await;
    assert_eq!(batches.len(), 4, "no more are kept");
    let mut router = Router::default();
    batches.iter().for_each(|(number, payload)| router.take(*number, payload));
    assert_eq!((router.missed, router.next), (batches[0].0, batches[0].0 + 4));
    assert!(router.missed > 0);
    assert_eq!(replay(&missed, router.next - 1, true).await, batches[3..]);
    assert_eq!(replay(&missed, router.next, true).await, []);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_reloaded_engine_has_an_empty_cache() {
    let model = poisoned();
    let files = ModelFiles::directory(model.path()).unwrap();
    let engine = Options {
        block_size: 4,
        scheduler: SchedulerOptions { max_num_seqs: 1, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let (server, _, missed) = TestServer::publishing(&files, &engine, publishing(100, EventFormat::Map)).await;
    let good = json!({"prompt": [5, 6, 7, 8, 9, 10], "max_tokens": 1});
    let bad = json!({"prompt": [11, 12, 13, 14, 15, 16, 17, POISON, 18], "max_tokens": 1});
    server.post(COMPLETIONS, &good).await;
    server.refused(COMPLETIONS, &bad, 500).await;
    while server.get("/ready").await.status() != 200 {
        tokio::task::yield_now().await;
    }
    server.post(COMPLETIONS, &good).await;
    let batches = replay(&missed, 0, true).await;
    let events: Vec<Event> = batches.iter().flat_map(|(_, payload)| decode(payload).events).collect();
    let [Event::Stored { hashes, parent: None, tokens, block_size: 4, .. }, Event::Cleared, again] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((hashes.len(), &tokens[..]), (1, &[5, 6, 7, 8][..]), "only the successful step's blocks are stored");
    assert_eq!(again, &events[0], "with the same hash");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn pinned_prefixes_are_published_when_they_are_computed() {
    let options = ServeOptions {
        shared_prefixes: vec![engine::Prompt::Tokens((100..140).collect())],
        ..publishing(10, EventFormat::Map)
    };
    let (server, _, missed) = start(&Options::default(), options).await;
    let batches = replay(&missed, 0, true).await;
    let events = decode(&batches[0].1).events;
    assert!(matches!(&events[..], [Event::Stored { tokens, .. }] if *tokens == (100..132).collect::<Vec<u64>>()));
    server.stop().await.unwrap();
}

/// The engine does not wait for the idle subscriber, and other subscribers miss nothing.
#[tokio::test]
async fn an_idle_subscriber_delays_no_other() {
    let (server, events, missed) = start(&small(40), publishing(10_000, EventFormat::Map)).await;
    let idle = subscribed(&events, "").await;
    load(&server, 0..40).await;
    let mut router = Router::default();
    replay(&missed, 0, true).await.iter().for_each(|(number, payload)| router.take(*number, payload));
    assert_eq!((router.missed, known_blocks(&router)), (0, cached_blocks(&server).await));
    server.stop().await.unwrap();
    drop(idle);
}

#[tokio::test]
async fn unusable_endpoints_are_refused() {
    let bind = async |endpoint: &str| {
        let options = ServeOptions { port: 0, kv_events: Some(KvEventsOptions::at(endpoint)), ..Default::default() };
        let server = Server::bind(&ModelFiles::bundled(), &Options::default(), &options).await;
        server.err().map(|error| format!("{error:#}"))
    };
    for endpoint in ["5557", "udp://*:5557", "ipc://events", "tcp://127.0.0.1:99999", "tcp://127.0.0.1"] {
        let error = bind(endpoint).await.unwrap();
        assert!(error.contains(&format!("cannot publish KV events at {endpoint}")), "{error}");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp://{}", listener.local_addr().unwrap());
    assert!(bind(&taken).await.unwrap().contains(&taken));
    assert_eq!(bind("tcp://*:0").await, None);
}

/// Batches as vLLM's publisher writes them now (msgspec, tagged maps, with fields that Quire does not send) and earlier
/// (arrays).
#[test]
fn a_frame_of_vllm_is_read_by_the_same_decoder() {
    let mut map = vec![0x93, 0xcb, 0x41, 0xda, 0, 0, 0, 0, 0, 0, 0x92];
    map.extend(b"\x8b\xa4type\xabBlockStored\xacblock_hashes\x91\xcf\xff\xee\xdd\xcc\xbb\xaa\x99\x88");
    map.extend(b"\xb1parent_block_hash\xc0\xa9token_ids\x94\x01\xcc\xc8\xcd\x01\x00\xce\x00\x01\x11\x70");
    map.extend(b"\xaablock_size\x04\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\xaaextra_keys\x91\xc0");
    map.extend(b"\xa9group_idx\x00\xb2kv_cache_spec_kind\xaefull_attention");
    map.extend(b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91\x07\xa6medium\xa3GPU\x00");
    let medium = "GPU".to_owned();
    let stored = Event::Stored {
        medium: medium.clone(),
        hashes: vec![0xffee_ddcc_bbaa_9988],
        parent: None,
        tokens: vec![1, 200, 256, 70_000],
        block_size: 4,
    };
    let removed = Event::Removed { medium, hashes: vec![7] };
    let time = f64::from_bits(0x41da_0000_0000_0000);
    assert_eq!(decode(&map), Batch { time, events: vec![stored.clone(), removed], rank: Some(0) });

    let mut array = vec![0x93, 0xcb, 0x41, 0xda, 0, 0, 0, 0, 0, 0, 0x92];
    array.extend(b"\x97\xabBlockStored\x91\xcf\xff\xee\xdd\xcc\xbb\xaa\x99\x88\xc0");
    array.extend(b"\x94\x01\xcc\xc8\xcd\x01\x00\xce\x00\x01\x11\x70\x04\xc0\xa3GPU\x91\xb0AllBlocksCleared\xc0");
    assert_eq!(decode(&array), Batch { time, events: vec![stored, Event::Cleared], rank: None });
}
