//! Requests to an endpoint, as they arrive.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, sleep};

use crate::arrivals::{Process, times};
use crate::endpoint::{Endpoint, RequestPrompt};
use crate::record::Record;
use crate::workload::Lengths;

/// What makes requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// The clock: so many requests a second, whether earlier ones are answered or not.
    Open {
        /// How they are spread.
        process: Process,
        /// Requests a second.
        rate: f64,
        /// The seed of the arrival times.
        seed: u64,
    },
    /// Answers: so many clients, at least one, each of which sends its next request when it has been answered.
    Closed {
        /// Clients.
        concurrency: usize,
    },
}

/// Sends `requests` to `endpoint` and waits for all that were begun. No request is begun when `duration` is over.
///
/// All of it runs in one task, so that a current-thread runtime will do.
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
