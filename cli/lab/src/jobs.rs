//! Independent jobs on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Error, Result};

/// Progress of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The job that finished last.
    pub name: &'a str,
    /// Finished units.
    pub done: usize,
    /// All units of the figure.
    pub of: usize,
    /// The name of a unit, such as panels.
    pub unit: &'static str,
}

/// A callback for each finished job.
pub type JobProgress<'a> = &'a (dyn Fn(Progress<'_>) + Sync);

/// Runs `work` on every item in parallel and returns the results in the order of the items. `name` describes an item to
/// `progress`.
///
/// # Errors
/// The error of the first item that failed.
pub fn all<T: Sync, R: Send>(
    items: &[T],
    progress: JobProgress<'_>,
    name: impl Fn(&T) -> String + Sync,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let done = AtomicUsize::new(0);
    let report = |at: usize| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(Progress { name: &name(&items[at]), done, of: items.len(), unit: "parts" });
    };
    in_order(items, &(0..items.len()).collect::<Vec<_>>(), report, work)
}

/// As [`all`], for curves of several panels. Items with more `work_in` start earlier. Otherwise a long
/// one could be left for a single processor at the end.
///
/// # Errors
/// The first error of any item.
pub fn panels<T: Sync, R: Send>(
    items: &[T],
    progress: JobProgress<'_>,
    name: impl Fn(&T) -> String + Sync,
    panel: impl Fn(&T) -> usize,
    work_in: impl Fn(&T) -> f64,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let panels: Vec<usize> = items.iter().map(panel).collect();
    // Items of each panel that are not done.
    let left: Vec<AtomicUsize> = (0..panels.iter().max().map_or(0, |last| last + 1))
        .map(|panel| AtomicUsize::new(panels.iter().filter(|own| **own == panel).count()))
        .collect();
    let of = left.iter().filter(|left| left.load(Ordering::Relaxed) > 0).count();
    let done = AtomicUsize::new(0);
    let report = |at: usize| {
        let is_last = left[panels[at]].fetch_sub(1, Ordering::Relaxed) == 1;
        let done = done.fetch_add(usize::from(is_last), Ordering::Relaxed) + usize::from(is_last);
        progress(Progress { name: &name(&items[at]), done, of, unit: "panels" });
    };
    in_order(items, &longest_first(items, work_in), report, work)
}

/// Positions of the items, those with the most work first.
fn longest_first<T>(items: &[T], work_in: impl Fn(&T) -> f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| work_in(&items[*b]).total_cmp(&work_in(&items[*a])));
    order
}

/// The results of `work` on each item, in their order. Threads take them in `order`, and `report` each that is done.
fn in_order<T: Sync, R: Send>(
    items: &[T],
    order: &[usize],
    report: impl Fn(usize) + Sync,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<R>>>> = Mutex::new(items.iter().map(|_| None).collect());
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(&items[at]);
                    report(at);
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
        let progress = |_: Progress<'_>| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        let doubled = all(&items, &progress, usize::to_string, |n| Ok(2 * n)).unwrap();
        assert!(doubled.iter().enumerate().all(|(i, n)| *n == 2 * i) && heard.into_inner() == 100);
        assert!(
            all(&items, &|_| {}, usize::to_string, |n| if *n == 7 { Err(Error::msg("7")) } else { Ok(()) }).is_err()
        );
    }

    #[test]
    fn panels_are_counted_when_all_of_their_items_are_done() {
        let items = [0, 0, 0, 1, 1, 2];
        let heard = Mutex::new(Vec::new());
        let progress = |progress: Progress<'_>| {
            heard.lock().unwrap().push((progress.done, progress.of));
        };
        panels(&items, &progress, usize::to_string, |panel| *panel, |_| 1.0, |_| Ok(())).unwrap();
        let heard = heard.into_inner().unwrap();
        assert_eq!((heard.len(), heard.iter().map(|(done, _)| *done).max()), (6, Some(3)));
        assert!(heard.iter().all(|(_, of)| *of == 3));
    }

    #[test]
    fn the_longest_items_start_first() {
        assert_eq!(longest_first(&[3.0, 1.0, 7.0, 7.0], |work| *work), [2, 3, 0, 1]);
    }
}
