//! Independent jobs on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Error, Result};

/// A callback that receives the name of each finished job.
pub type JobProgress<'a> = &'a (dyn Fn(&str) + Sync);

/// Runs `work` on every item in parallel and returns the results in the order of the items. When an item is done,
/// `progress` receives its `name`.
///
/// # Errors
/// The error of the first item that failed.
pub fn all<T: Sync, R: Send>(
    items: &[T],
    progress: JobProgress<'_>,
    name: impl Fn(&T) -> String + Sync,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<R>>>> = Mutex::new(items.iter().map(|_| None).collect());
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, item)) = items.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(item);
                    progress(&name(item));
                    if let Ok(mut results) = results.lock() {
                        results[at] = Some(result);
                    }
                }
            });
        }
    });
    let results = results.into_inner().map_err(|_| Error::msg("a job panicked"))?;
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(Error::msg("a job did not run")))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..100).collect();
        let heard = AtomicUsize::new(0);
        let progress = |_: &str| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        let doubled = all(&items, &progress, usize::to_string, |n| Ok(2 * n)).unwrap();
        assert!(doubled.iter().enumerate().all(|(i, n)| *n == 2 * i) && heard.into_inner() == 100);
        assert!(
            all(&items, &|_| {}, usize::to_string, |n| if *n == 7 { Err(Error::msg("7")) } else { Ok(()) }).is_err()
        );
    }
}
