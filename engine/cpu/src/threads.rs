//! Threads that share operations: the caller and its helpers.
//!
//! A step consists of a few hundred operations, a few microseconds apart. Waking a thread takes longer than many of
//! these operations. So an idle helper polls for the next operation for a while before it sleeps.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{hint, io, thread};

use checkpoint::{Error, Result};

/// Work below which sharing costs more than it saves, in multiply-adds or their equivalent.
const MIN_SHARED_WORK: usize = 1 << 15;
/// How long a helper polls for work before it sleeps.
const LOOKOUT: Duration = Duration::from_micros(50);
/// How often a thread polls before it checks the time or yields.
const LOOKS: usize = 64;

/// The pool of threads. The caller's thread works too, because it can start without being woken.
pub(super) struct Threads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

/// State shared by the caller and its helpers.
#[derive(Default)]
struct Shared {
    /// Number of calls so far. Ending the helpers counts as a call.
    calls: AtomicUsize,
    /// The current work, while helpers may still start on it.
    work: Mutex<Option<Work>>,
    /// Number of helpers running it. It is incremented only under the lock of `work`.
    running: AtomicUsize,
    /// Number of helpers that are sleeping on `woken`.
    sleeping: Mutex<usize>,
    woken: Condvar,
    /// The payload of a helper's panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    is_over: AtomicBool,
}

/// A function. Its owner keeps it alive while [`Shared::work`] contains it or a helper runs it.
#[derive(Clone, Copy)]
struct Work(&'static (dyn Fn() + Sync));

impl Threads {
    /// Creates a pool of `threads` threads, including the caller's. The default is one for each available core.
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

    /// Returns the number of threads, including the caller's.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Returns how many parts to divide `work` into: at most two per thread, and at most `most`. A thread that finishes
    /// early takes another part.
    pub fn parts(&self, work: usize, most: usize) -> usize {
        if self.count() == 1 || work < MIN_SHARED_WORK {
            return 1;
        }
        (work / (MIN_SHARED_WORK / 2)).min(self.count() * 2).clamp(1, most.max(1))
    }

    /// Calls `run` once with each task, on any thread and concurrently. Tasks are handed out in order. `run` must not
    /// call this method itself.
    ///
    /// # Panics
    /// If `run` panics. The panic resumes here after all threads have finished.
    pub fn each<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T> + Send, run: impl Fn(T) + Sync) {
        if tasks.len() <= 1 || self.helpers.is_empty() {
            return tasks.for_each(run);
        }
        let queue = Mutex::new(tasks);
        self.shared.run(&|| {
            loop {
                // The guard must not outlive this statement. Otherwise the tasks would run one at a time.
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
            // Ignores the result: panics in the work are caught, and nothing else in a helper can panic.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// Runs `work` on this thread, and on every helper that arrives before this thread finishes it.
    fn run(&self, work: &(dyn Fn() + Sync)) {
        /// Withdraws the work on drop, and waits for the helpers that are running it.
        struct Finish<'a>(&'a Shared);

        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                *lock(&self.0.work) = None;
                wait_until(|| self.0.running.load(Ordering::Acquire) == 0);
            }
        }

        // SAFETY: only the lifetime changes. `finish` is dropped before `work`'s lifetime ends, whether this function
        // returns or unwinds. After that no helper has the reference. New helpers do not find it in `work`, and earlier
        // ones have decremented `running` after their last use. The acquiring load in `Finish` is ordered after that.
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

    /// Notifies all helpers that there is work, or that they should end.
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if *lock(&self.sleeping) > 0 {
            self.woken.notify_all();
        }
    }

    /// Runs a helper until the pool is dropped.
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

    /// Waits for a call after number `seen`, and returns the number of calls so far.
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
        // A caller increments `calls` before it takes this lock to look for sleepers. So either the call is seen here,
        // or the caller sees this sleeper and wakes it.
        let mut sleeping = lock(&self.sleeping);
        *sleeping += 1;
        while self.calls.load(Ordering::SeqCst) == seen {
            sleeping = self.woken.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
        }
        *sleeping -= 1;
        self.calls.load(Ordering::Acquire)
    }
}

/// Spins until `condition` holds. It is expected to hold soon.
fn wait_until(condition: impl Fn() -> bool) {
    loop {
        for _ in 0..LOOKS {
            if condition() {
                return;
            }
            hint::spin_loop();
        }
        // If there are more threads than cores, the awaited thread may need this thread's core.
        thread::yield_now();
    }
}

/// Locks a mutex even if it is poisoned. The data in these mutexes is never left inconsistent.
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
                    // Wait until all helpers sleep.
                    wait_until(|| *lock(&threads.shared.sleeping) == count - 1);
                }
            }
        }
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller_and_the_next_call_works() {
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
    fn zero_threads_are_refused() {
        assert!(matches!(Threads::new(Some(0)), Err(Error::Option(_))));
    }

    #[test]
    fn small_work_is_not_shared() {
        let threads = Threads::new(Some(4)).unwrap();
        assert_eq!(threads.parts(1000, 100), 1);
        assert_eq!(threads.parts(1 << 30, 100), 8);
        assert_eq!(threads.parts(1 << 30, 3), 3);
    }
}
