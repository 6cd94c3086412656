//! The threads that operations are spread over: the caller and helpers.
//!
//! A step asks for some hundred operations, a few microseconds apart. So a helper that has nothing to do looks out for the
//! next operation for a while before it sleeps: to wake a thread takes longer than many an operation.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{hint, io, thread};

use checkpoint::{Error, Result};

/// Multiply-adds (or their worth in other work) below which sharing them costs more than it saves.
const MIN_SHARED_WORK: usize = 1 << 15;
/// How long a helper looks out for work before it sleeps.
const LOOKOUT: Duration = Duration::from_micros(50);
/// How often a thread looks before it asks for the time, or lets another one run.
const LOOKS: usize = 64;

/// The calling thread works too: it starts at once instead of waiting for another to wake.
pub(super) struct Threads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

/// What the caller and its helpers share.
#[derive(Default)]
struct Shared {
    /// Counts the calls, and the end of the helpers.
    calls: AtomicUsize,
    /// What helpers are to run now, if they still may.
    work: Mutex<Option<Work>>,
    /// Helpers that run it: counted up under the lock of `work`.
    running: AtomicUsize,
    /// Helpers that sleep until `woken`.
    sleeping: Mutex<usize>,
    woken: Condvar,
    /// What a helper has panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    is_over: AtomicBool,
}

/// A function that its owner keeps alive as long as [`Shared::work`] holds this, or a helper runs it.
#[derive(Clone, Copy)]
struct Work(&'static (dyn Fn() + Sync));

impl Threads {
    /// `threads` in all, the caller included; by default one for each core this process may use.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let count = match threads {
            Some(0) => return Err(Error::Option("the number of threads must be at least 1".into())),
            Some(n) => n,
            None => thread::available_parallelism().map_or(1, usize::from),
        };
        let mut threads = Threads { shared: Arc::default(), helpers: Vec::new() };
        for i in 1..count {
            let shared = Arc::clone(&threads.shared);
            let helper = thread::Builder::new().name(format!("quire-cpu-{i}")).spawn(move || shared.help());
            let refused = |e: io::Error| Error::Option(format!("cannot start {count} threads: {e}"));
            threads.helpers.push(helper.map_err(refused)?);
        }
        Ok(threads)
    }

    /// How many there are, the caller included.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// How many parts to cut `work` into, so that threads that finish early find another. Never more than `most`.
    pub fn parts(&self, work: usize, most: usize) -> usize {
        if self.count() == 1 || work < MIN_SHARED_WORK {
            return 1;
        }
        (work / (MIN_SHARED_WORK / 2)).min(self.count() * 4).clamp(1, most.max(1))
    }

    /// Calls `run` once with each task, on any thread, in any order. Tasks are handed out in order. `run` itself must not
    /// share work among these threads.
    ///
    /// # Panics
    /// If `run` does, when it has returned on all threads.
    pub fn each<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T> + Send, run: impl Fn(T) + Sync) {
        if tasks.len() <= 1 || self.helpers.is_empty() {
            return tasks.for_each(run);
        }
        let queue = Mutex::new(tasks);
        self.shared.run(&|| {
            loop {
                // The guard must not outlive this statement, or the tasks would run one at a time.
                let next = lock(&queue).next();
                match next {
                    Some(task) => run(task),
                    None => break,
                }
            }
        });
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.call();
        for helper in self.helpers.drain(..) {
            // What helpers run is caught when it panics, and they do nothing else that could.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// Runs `work` on this thread, and on all helpers that come before it returns here.
    fn run(&self, work: &(dyn Fn() + Sync)) {
        /// Takes the work back, and waits for the helpers that have it.
        struct Finish<'a>(&'a Shared);

        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                *lock(&self.0.work) = None;
                wait_until(|| self.0.running.load(Ordering::Acquire) == 0);
            }
        }

        // SAFETY: only the lifetime is changed. `finish` is dropped before `work` ends, whether this returns or unwinds, and
        // then no helper has the reference any more: none finds it in `work`, and all that had found it have counted
        // themselves out after their last use of it, which the load above orders before.
        let work = Work(unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) });
        let finish = Finish(self);
        *lock(&self.work) = Some(work);
        self.call();
        work.0();
        drop(finish);
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Has all helpers look.
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if *lock(&self.sleeping) > 0 {
            self.woken.notify_all();
        }
    }

    /// What a helper does until the end.
    fn help(&self) {
        let mut seen = 0;
        loop {
            seen = self.next_call(seen);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let work = {
                let work = lock(&self.work);
                if work.is_some() {
                    self.running.fetch_add(1, Ordering::Relaxed);
                }
                *work
            };
            let Some(Work(work)) = work else { continue };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                *lock(&self.panic) = Some(panic);
            }
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until there has been a call after `seen`, and returns how many there were.
    fn next_call(&self, seen: usize) -> usize {
        let begin = Instant::now();
        while begin.elapsed() < LOOKOUT {
            for _ in 0..LOOKS {
                let calls = self.calls.load(Ordering::Acquire);
                if calls != seen {
                    return calls;
                }
                hint::spin_loop();
            }
        }
        // A call counts before it looks for sleepers under this lock: it is seen here, or wakes.
        let mut sleeping = lock(&self.sleeping);
        *sleeping += 1;
        while self.calls.load(Ordering::SeqCst) == seen {
            sleeping = self.woken.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
        }
        *sleeping -= 1;
        self.calls.load(Ordering::Acquire)
    }
}

/// Waits for what will soon be.
fn wait_until(is_so: impl Fn() -> bool) {
    loop {
        for _ in 0..LOOKS {
            if is_so() {
                return;
            }
            hint::spin_loop();
        }
        // Where there are more threads than cores, the one that is waited for may want this one's.
        thread::yield_now();
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
    fn calls_follow_each_other_at_once_and_after_pauses() {
        for count in [2, 3, 8] {
            let threads = Threads::new(Some(count)).unwrap();
            let done = AtomicUsize::new(0);
            for round in 0..2000 {
                threads.each(0..round % 7, |_| _ = done.fetch_add(1, Ordering::Relaxed));
                assert_eq!(done.swap(0, Ordering::Relaxed), round % 7);
                if round % 500 == 0 {
                    // Until all helpers sleep.
                    wait_until(|| *lock(&threads.shared.sleeping) == count - 1);
                }
            }
        }
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller_and_the_next_call_is_served() {
        let threads = Threads::new(Some(3)).unwrap();
        for bad in 0..64 {
            let run = |task| assert_ne!(task, bad, "this task fails");
            let panic = catch_unwind(AssertUnwindSafe(|| threads.each(0..64, run))).unwrap_err();
            assert!(panic.downcast_ref::<String>().unwrap().contains("this task fails"));
            let done = AtomicUsize::new(0);
            threads.each(0..64, |_| _ = done.fetch_add(1, Ordering::Relaxed));
            assert_eq!(done.into_inner(), 64);
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
