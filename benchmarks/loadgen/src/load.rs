//! Sends requests to an endpoint as they arrive.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, sleep};

use crate::arrivals::{Process, times};
use crate::endpoint::{Endpoint, RequestPrompt};
use crate::record::Record;
use crate::workload::Lengths;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// By the clock: at a fixed rate, whether or not earlier requests have been answered.
    Open {
        /// The distribution of arrivals.
        process: Process,
        /// Requests per second.
        rate: f64,
        /// Seed of the arrival times.
        seed: u64,
    },
    /// By the answers: each of `concurrency` clients sends its next request when its previous one has been answered.
    Closed {
        /// Number of clients, at least one.
        concurrency: usize,
    },
}

/// Sends `requests` to `endpoint` and waits for all that were sent. No request starts after `duration`.
///
/// Everything runs in one task, so a current-thread runtime suffices.
pub async fn serve(
    endpoint: &Endpoint,
    load: Load,
    duration: Duration,
    requests: impl Iterator<Item = (RequestPrompt, Lengths)>,
) -> Vec<Record> {
    let start = Instant::now();
    match load {
        Load::Open { process, rate, seed } => {
            let arrivals = times(process, rate, seed).take_while(|arrival| *arrival < duration);
            let asks = arrivals.zip(requests).map(|(arrival, (prompt, lengths))| async move {
                sleep(arrival.saturating_sub(start.elapsed())).await;
                endpoint.ask(&prompt, lengths, arrival, start).await
            });
            join_all(asks).await
        }
        Load::Closed { concurrency } => {
            let requests = requests.take_while(|_| start.elapsed() < duration);
            let asks = stream::iter(requests)
                .map(|(prompt, lengths)| async move { endpoint.ask(&prompt, lengths, start.elapsed(), start).await });
            asks.buffer_unordered(concurrency).collect().await
        }
    }
}
