//! The shape of a launch.

/// The grid and block dimensions of a launch, and the dynamic shared memory of each block. The dynamic memory comes in
/// addition to the static arrays that the kernel declares.
///
/// ```
/// use cuda_std::launch::LaunchShape;
///
/// let shape = LaunchShape::new([40, 8, 1], 128).with_shared(16 << 10);
/// assert_eq!((shape.grid, shape.threads, shape.shared), ([40, 8, 1], [128, 1, 1], 16384));
/// assert_eq!(LaunchShape::covering(1000, 256), LaunchShape::new([4, 1, 1], 256));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LaunchShape {
    /// Blocks in the grid: x, y, z.
    pub grid: [u32; 3],
    /// Threads per block: x, y, z.
    pub threads: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared: u32,
    /// Blocks per cluster: x, y, z. The grid must be a multiple of it.
    pub cluster: [u32; 3],
}

impl LaunchShape {
    /// Creates a grid of one-dimensional blocks of `threads` threads.
    pub const fn new(grid: [u32; 3], threads: u32) -> Self {
        Self { grid, threads: [threads, 1, 1], shared: 0, cluster: [1; 3] }
    }

    /// Creates a one-dimensional grid of `blocks` blocks of `threads` threads.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self::new([blocks, 1, 1], threads)
    }

    /// Creates enough one-dimensional blocks of `threads` threads for one thread per element of `count`.
    ///
    /// # Panics
    /// Panics if `threads` is zero.
    pub const fn covering(count: u32, threads: u32) -> Self {
        Self::linear(count.div_ceil(threads), threads)
    }

    /// Returns the same shape with these block dimensions: threads along x, y and z.
    pub const fn with_threads(self, threads: [u32; 3]) -> Self {
        Self { threads, ..self }
    }

    /// Returns the same shape with `bytes` bytes of dynamic shared memory per block.
    pub const fn with_shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }

    /// Returns the same shape with clusters of this many blocks along x, y and z. Requires Hopper.
    pub const fn with_clusters(self, blocks: [u32; 3]) -> Self {
        Self { cluster: blocks, ..self }
    }

    /// Returns the number of threads per block.
    pub const fn block_threads(self) -> u64 {
        product(self.threads)
    }

    /// Returns the number of blocks in the grid. The number saturates, and such a grid cannot be launched.
    pub const fn blocks(self) -> u64 {
        product(self.grid)
    }
}

const fn product([x, y, z]: [u32; 3]) -> u64 {
    (x as u64 * y as u64).saturating_mul(z as u64)
}
