//! A connected subscriber of KV events that does not read must not use memory beyond a bound.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use futures_util::FutureExt;
use peak_alloc::PeakAlloc;
use server::KvEventsOptions;
use server::events::{EventSource, Publisher};
use server::metrics::Metrics;
use zeromq::{Socket, SocketRecv, SubSocket};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Batches to publish. Each would take about 340 bytes if it were queued.
const BATCHES: usize = 250_000;
/// The bound on bytes queued for subscribers, plus a margin for the allocator and the connections.
const BOUND: usize = 48 << 20;

/// Publishes `batches` batches. The publisher runs on the same thread and takes waiting batches on its turn. Batches
/// that do not fit in the queue before that do not count.
async fn publish(source: &EventSource, metrics: &Metrics, batches: usize) {
    let dropped = || metrics.dropped_batches.get() as usize;
    let (before, mut sent) = (dropped(), 0);
    while sent < batches + dropped() - before {
        source.cleared();
        sent += 1;
        if sent % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stopped_subscriber_costs_no_more_than_a_bound() {
    let metrics = Metrics::new("m");
    // The long topic fills the connection's own buffers quickly. Its length is that of a large batch, but only one copy
    // is in memory.
    let options = KvEventsOptions { topic: "t".repeat(2000), ..KvEventsOptions::at("tcp://127.0.0.1:0") };
    let (publisher, source) = Publisher::bind(&options, &metrics).await.unwrap();
    let mut stopped = SubSocket::new();
    stopped.connect(&publisher.address).await.unwrap();
    stopped.subscribe("").await.unwrap();
    // The subscriber is connected once a batch has arrived.
    let mut receive = std::pin::pin!(stopped.recv());
    loop {
        publish(&source, &metrics, 1).await;
        if receive.as_mut().now_or_never().is_some() {
            break;
        }
    }

    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    publish(&source, &metrics, BATCHES).await;
    let most = ALLOCATOR.peak_usage() - before;
    eprintln!("a stopped subscriber took {} KiB", most >> 10);
    assert!(most > 8 << 20, "the subscriber reads: {most} bytes");
    assert!(most < BOUND, "a stopped subscriber takes {most} bytes");

    // A new subscriber is served at the same address.
    let mut other = SubSocket::new();
    other.connect(&publisher.address).await.unwrap();
    other.subscribe("t").await.unwrap();
    let mut receive = std::pin::pin!(other.recv());
    loop {
        publish(&source, &metrics, 1).await;
        if receive.as_mut().now_or_never().is_some() {
            break;
        }
    }
}
