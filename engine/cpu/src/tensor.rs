//! Activations, and the pool that reuses their memory.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::threads::lock;

/// Alignment of an activation's data, in elements: a cache line, so that no vector load straddles two.
const LINE: usize = 16;

/// A row-major `[rows, cols]` matrix of f32. Dropping it returns its memory to the pool.
pub struct CpuTensor {
    rows: usize,
    cols: usize,
    /// Elements of `buffer` before the first aligned one.
    skip: usize,
    buffer: Vec<f32>,
    pool: Arc<Pool>,
}

impl CpuTensor {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements, row by row.
    pub fn as_slice(&self) -> &[f32] {
        &self.buffer[self.skip..][..self.rows * self.cols]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.buffer[self.skip..][..self.rows * self.cols]
    }
}

impl AsMut<[f32]> for CpuTensor {
    fn as_mut(&mut self) -> &mut [f32] {
        self.as_mut_slice()
    }
}

impl Drop for CpuTensor {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}

/// Free buffers, grouped by the logarithm of their size. A step with the same shapes as an earlier one allocates
/// nothing.
pub(super) struct Pool {
    free: Mutex<[Vec<Vec<f32>>; usize::BITS as usize]>,
    allocations: AtomicUsize,
}

impl Pool {
    pub fn new() -> Arc<Self> {
        Arc::new(Pool { free: Mutex::new([const { Vec::new() }; _]), allocations: AtomicUsize::new(0) })
    }

    /// Returns a matrix with unspecified elements. The caller must write all of them.
    pub fn tensor(self: &Arc<Self>, rows: usize, cols: usize) -> CpuTensor {
        let capacity = (rows * cols + LINE).next_power_of_two();
        let buffer = lock(&self.free)[capacity.ilog2() as usize].pop().unwrap_or_else(|| {
            self.allocations.fetch_add(1, Ordering::Relaxed);
            vec![0.0; capacity]
        });
        let skip = buffer.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        CpuTensor { rows, cols, skip, buffer, pool: Arc::clone(self) }
    }

    fn put(&self, buffer: Vec<f32>) {
        lock(&self.free)[buffer.len().ilog2() as usize].push(buffer);
    }

    /// Number of buffers allocated so far. Reused buffers do not count.
    pub fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_reused() {
        let pool = Pool::new();
        drop((pool.tensor(3, 100), pool.tensor(2, 150)));
        assert_eq!(pool.allocations(), 2);
        let (a, b) = (pool.tensor(1, 300), pool.tensor(300, 1));
        assert_eq!(pool.allocations(), 2);
        assert_eq!((a.rows(), a.cols(), b.as_slice().len()), (1, 300, 300));
        drop(pool.tensor(1000, 1000));
        assert_eq!(pool.allocations(), 3);
    }

    #[test]
    fn data_is_aligned_and_may_be_empty() {
        let pool = Pool::new();
        for len in [0, 1, 16, 17, 4096] {
            let t = pool.tensor(1, len);
            assert_eq!(t.as_slice().len(), len);
            assert_eq!(t.as_slice().as_ptr() as usize % 64, 0);
        }
    }
}
