//! The shape of a launch.

/// How many threads a launch has, in what blocks, and how much shared memory each block gets beside what its kernel
/// declares.
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
    /// Blocks of the grid: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z.
    pub threads: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Blocks of a cluster: x, y, z. The grid is a multiple of it.
    pub cluster: [u32; 3],
}

impl LaunchShape {
    /// A grid of one-dimensional blocks of `threads` threads.
    pub const fn new(grid: [u32; 3], threads: u32) -> Self {
        Self { grid, threads: [threads, 1, 1], shared: 0, cluster: [1; 3] }
    }

    /// A one-dimensional grid of `blocks` blocks of `threads` threads.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self::new([blocks, 1, 1], threads)
    }

    /// As many one-dimensional blocks of `threads` threads as `count` elements need, with a thread for each.
    ///
    /// # Panics
    /// If blocks have no threads.
    pub const fn covering(count: u32, threads: u32) -> Self {
        Self::linear(count.div_ceil(threads), threads)
    }

    /// The same launch with other blocks: their threads along x, y and z.
    pub const fn with_threads(self, threads: [u32; 3]) -> Self {
        Self { threads, ..self }
    }

    /// The same launch with `bytes` bytes of dynamic shared memory for each block.
    pub const fn with_shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }

    /// The same launch in clusters of so many blocks along x, y and z. Hopper.
    pub const fn with_clusters(self, blocks: [u32; 3]) -> Self {
        Self { cluster: blocks, ..self }
    }

    /// All threads of a block.
    pub const fn block_threads(self) -> u64 {
        product(self.threads)
    }

    /// All blocks of the grid. Their number saturates; the launch of such a grid is refused.
    pub const fn blocks(self) -> u64 {
        product(self.grid)
    }
}

const fn product([x, y, z]: [u32; 3]) -> u64 {
    (x as u64 * y as u64).saturating_mul(z as u64)
}
