//! Sums and gathers between workers of one process, through shared memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use super::{Shard, WorkerGroup};

/// How often a worker checks for the others before it sleeps. Usually they arrive soon.
const SPINS: usize = 2000;

/// State shared by the workers of a model.
#[derive(Debug)]
pub struct RankGroup {
    /// Each worker's input for the current sum or gather.
    parts: Vec<RwLock<Vec<f32>>>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
    /// Number of completed meetings. It can be read without the lock.
    completed: AtomicUsize,
    /// Number of sums so far.
    sums: AtomicUsize,
}

/// A barrier: all workers must arrive before any continues.
#[derive(Debug, Default)]
struct Meeting {
    arrived: usize,
    /// Number of completed meetings.
    completed: usize,
    /// Whether a worker has failed and will never arrive.
    failed: bool,
}

impl RankGroup {
    /// Creates a group of `of` workers.
    pub fn new(of: usize) -> Arc<Self> {
        Arc::new(RankGroup {
            parts: (0..of).map(|_| RwLock::default()).collect(),
            meeting: Mutex::default(),
            changed: Condvar::new(),
            completed: AtomicUsize::new(0),
            sums: AtomicUsize::new(0),
        })
    }

    /// Returns the worker with this number.
    pub fn rank(self: &Arc<Self>, rank: usize) -> WorkerRank {
        WorkerRank { group: Arc::clone(self), shard: Shard { rank, of: self.parts.len(), ..Shard::WHOLE } }
    }

    /// Number of sums so far. A sum counts once, however many workers take part.
    pub fn sums(&self) -> usize {
        self.sums.load(Ordering::Relaxed)
    }

    /// Waits until all workers have arrived. Returns false if one has failed.
    pub(crate) fn meet(&self) -> bool {
        let lock = || self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut meeting = lock();
        if meeting.failed {
            return false;
        }
        let round = meeting.completed;
        meeting.arrived += 1;
        if meeting.arrived == self.parts.len() {
            meeting.arrived = 0;
            meeting.completed += 1;
            self.completed.fetch_add(1, Ordering::Release);
            self.changed.notify_all();
            return true;
        }
        let seen = self.completed.load(Ordering::Acquire);
        drop(meeting);
        for _ in 0..SPINS {
            if self.completed.load(Ordering::Acquire) != seen {
                break;
            }
            std::hint::spin_loop();
        }
        let mut meeting = lock();
        while meeting.completed == round && !meeting.failed {
            meeting = self.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        !meeting.failed
    }
}

impl WorkerGroup for RankGroup {
    fn fail(&self) {
        let mut meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        meeting.failed = true;
        self.completed.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    fn has_failed(&self) -> bool {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner).failed
    }
}

/// A worker's membership in its group.
#[derive(Clone, Debug)]
pub struct WorkerRank {
    group: Arc<RankGroup>,
    shard: Shard,
}

impl WorkerRank {
    /// Sets whether each worker has whole experts.
    pub fn with_whole_experts(mut self, whole_experts: bool) -> Self {
        self.shard.whole_experts = whole_experts;
        self
    }

    /// The worker's part of the model.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Replaces `x` by the sum of all workers' `x`, which must have the same length. The sum is computed in f32 in the
    /// order of the workers, so all get the same bits.
    pub fn sum(&self, x: &mut [f32]) {
        self.store_part(x);
        if !self.group.meet() {
            return;
        }
        if self.shard.is_first() {
            self.group.sums.fetch_add(1, Ordering::Relaxed);
        }
        for (rank, part) in self.group.parts.iter().enumerate() {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            if rank == 0 {
                x.copy_from_slice(&part);
            } else {
                x.iter_mut().zip(&*part).for_each(|(x, y)| *x += y);
            }
        }
        // Parts must not change until all workers have read them.
        self.group.meet();
    }

    /// Concatenates the columns of all workers' matrices of `rows` rows, and returns the result on the first worker.
    /// `make` allocates it for a number of columns.
    pub fn gather<T>(&self, rows: usize, part: &[f32], make: impl FnOnce(usize) -> T) -> Option<T>
    where
        T: AsMut<[f32]>,
    {
        self.store_part(part);
        if !self.group.meet() {
            return None;
        }
        let gathered = self.shard.is_first().then(|| {
            let parts: Vec<_> =
                self.group.parts.iter().map(|part| part.read().unwrap_or_else(PoisonError::into_inner)).collect();
            let cols = parts.iter().map(|part| part.len()).sum::<usize>() / rows.max(1);
            let mut whole = make(cols);
            for (row, to) in whole.as_mut().chunks_mut(cols.max(1)).take(rows).enumerate() {
                let mut at = 0;
                for part in &parts {
                    let width = part.len() / rows;
                    to[at..at + width].copy_from_slice(&part[row * width..(row + 1) * width]);
                    at += width;
                }
            }
            whole
        });
        self.group.meet();
        gathered
    }

    /// Stores a copy of this worker's input for the others.
    fn store_part(&self, part: &[f32]) {
        let mut own = self.group.parts[self.shard.rank].write().unwrap_or_else(PoisonError::into_inner);
        own.clear();
        own.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use std::thread;

    use super::*;

    /// Runs `work` on `of` workers and returns the results.
    fn run_on_all<T: Send>(of: usize, work: impl Fn(WorkerRank) -> T + Sync) -> Vec<T> {
        let group = RankGroup::new(of);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..of)
                .map(|rank| {
                    scope.spawn({
                        let (rank, work) = (group.rank(rank), &work);
                        move || work(rank)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_workers_get_the_same_sums() {
        for of in [1, 2, 3, 4, 8] {
            let sums = run_on_all(of, |rank| {
                let own = rank.shard().rank as f32;
                (0..200)
                    .map(|round| {
                        let mut x: Vec<f32> =
                            (0..round % 7 + 1).map(|i| 0.1 + own * 1e-3 + (i * round) as f32).collect();
                        rank.sum(&mut x);
                        x
                    })
                    .collect::<Vec<_>>()
            });
            for (round, x) in sums[0].iter().enumerate() {
                let want = |i: usize| {
                    (0..of).map(|rank| 0.1 + rank as f32 * 1e-3 + (i * round) as f32).reduce(|a, b| a + b).unwrap()
                };
                assert!(x.iter().enumerate().all(|(i, &x)| x == want(i)), "{of} workers, round {round}");
            }
            assert!(sums.iter().all(|of_one| *of_one == sums[0]), "{of} workers");
        }
    }

    #[test]
    fn the_first_worker_gathers_columns_in_order() {
        let gathered = run_on_all(3, |rank| {
            let widths = [2, 2, 1];
            let (own, width) = (rank.shard().rank, widths[rank.shard().rank]);
            let part: Vec<f32> = (0..2 * width).map(|i| (own * 10 + i) as f32).collect();
            rank.gather(2, &part, |cols| vec![0.0; 2 * cols])
        });
        assert_eq!(gathered[0].as_deref(), Some(&[0., 1., 10., 11., 20., 2., 3., 12., 13., 21.][..]));
        assert_eq!(gathered[1..], [None, None]);
    }

    #[test]
    fn a_failing_worker_releases_the_others() {
        let done = run_on_all(4, |rank| {
            for round in 0.. {
                if rank.shard().rank == 2 && round == 5 {
                    rank.group.fail();
                    return round;
                }
                rank.sum(&mut [1.0]);
                if rank.group.has_failed() {
                    return round;
                }
            }
            unreachable!("the loop is infinite")
        });
        assert_eq!(done[2], 5);
        assert!(done.iter().all(|&round| (4..=6).contains(&round)), "{done:?}");
    }
}
