//! The threads that operations are spread over: the caller and a pool of helpers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// Multiply-adds (or their worth in other work) below which waking another thread costs more than it saves.
const MIN_SHARED_WORK: usize = 1 << 15;

/// The calling thread works too: it starts at once instead of waiting for another to wake.
pub(super) struct Threads {
    helpers: Option<ThreadPool>,
    count: usize,
}

impl Threads {
    /// `threads` in all, the caller included; by default one for each core this process may use.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let count = match threads {
            Some(0) => return Err(Error::Option("the number of threads must be at least 1".into())),
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let helpers = match count - 1 {
            0 => None,
            n => Some(
                ThreadPoolBuilder::new()
                    .num_threads(n)
                    .thread_name(|i| format!("quire-cpu-{i}"))
                    .build()
                    .map_err(|e| Error::Option(format!("cannot start {count} threads: {e}")))?,
            ),
        };
        Ok(Threads { helpers, count })
    }

    /// How many parts to cut `work` into, so that threads that finish early find another. Never more than `most`.
    pub fn parts(&self, work: usize, most: usize) -> usize {
        if self.count == 1 || work < MIN_SHARED_WORK {
            return 1;
        }
        (work / (MIN_SHARED_WORK / 2)).min(self.count * 4).clamp(1, most.max(1))
    }

    /// Calls `run` once with each task, on any thread, in any order. Tasks are handed out in order.
    pub fn each<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T> + Send, run: impl Fn(T) + Sync) {
        let helpers = match &self.helpers {
            Some(pool) if tasks.len() > 1 => pool,
            _ => return tasks.for_each(run),
        };
        let wanted = (tasks.len() - 1).min(self.count - 1);
        let queue = Mutex::new(tasks);
        let drain = || {
            loop {
                // The guard must not outlive this statement, or the tasks would run one at a time.
                let next = lock(&queue).next();
                match next {
                    Some(task) => run(task),
                    None => break,
                }
            }
        };
        helpers.in_place_scope(|scope| {
            for _ in 0..wanted {
                scope.spawn(|_| drain());
            }
            drain();
        });
    }
}

/// Locks even after a panic elsewhere: what these mutexes guard is never left half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..5 {
            let threads = Threads::new(Some(threads)).unwrap();
            let mut seen = vec![0; 1000];
            threads.each(seen.chunks_mut(3), |chunk| chunk.iter_mut().for_each(|x| *x += 1));
            assert!(seen.iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn no_threads_is_refused() {
        assert!(matches!(Threads::new(Some(0)), Err(Error::Option(_))));
    }

    #[test]
    fn small_work_is_not_shared() {
        let threads = Threads::new(Some(4)).unwrap();
        assert_eq!(threads.parts(1000, 100), 1);
        assert_eq!(threads.parts(1 << 30, 100), 16);
        assert_eq!(threads.parts(1 << 30, 3), 3);
    }
}
