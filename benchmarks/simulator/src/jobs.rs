//! Independent pieces of work, on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Error, Result};

/// Hears what has been done, as it is done.
pub type JobProgress<'a> = &'a (dyn Fn(&str) + Sync);

/// What `work` makes of each item, in their order. `name` says what an item is, and `progress` hears it when the item is done.
///
/// # Errors
/// The first that any of them has.
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
    let results = results.into_inner().map_err(|_| Error::msg("a piece of work has panicked"))?;
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(|| Err(Error::msg("a piece of work was not done"))))
        .collect()
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
