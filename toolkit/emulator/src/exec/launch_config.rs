//! The configuration of a launch: its grid, its blocks and their shared memory.

/// Dynamic shared memory starts at the first multiple of this after the kernel's own variables.
const DYNAMIC_ALIGN: usize = 128;

/// The configuration of a launch.
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: usize,
    /// Blocks of a cluster.
    pub cluster: [u32; 3],
}

impl LaunchConfig {
    /// Returns the total number of blocks in the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Returns the total number of blocks in a cluster.
    pub fn cluster_size(&self) -> usize {
        self.cluster.iter().product::<u32>() as usize
    }

    /// Returns the number of clusters in each dimension of the grid.
    pub fn clusters(&self) -> [u32; 3] {
        [0, 1, 2].map(|axis| self.grid[axis] / self.cluster[axis])
    }

    /// Returns the number of threads in a block.
    pub fn threads(&self) -> usize {
        self.block.iter().product::<u32>() as usize
    }

    /// Returns the offset of dynamic shared memory, given the bytes that the kernel declares.
    pub fn dynamic_start(static_shared: usize) -> usize {
        static_shared.next_multiple_of(DYNAMIC_ALIGN)
    }

    /// Returns the bytes of shared memory per block, given the bytes that the kernel declares.
    pub fn shared(&self, static_shared: usize) -> usize {
        Self::dynamic_start(static_shared).saturating_add(self.dynamic_shared)
    }

    /// Returns the index of the block with a rank in a cluster. Clusters are counted in the natural order.
    pub fn block_at(&self, cluster: u64, rank: usize) -> [u32; 3] {
        let [outer, inner] = [position(cluster, self.clusters()), position(rank as u64, self.cluster)];
        [0, 1, 2].map(|axis| outer[axis] * self.cluster[axis] + inner[axis])
    }
}

/// Converts a linear index to a position in a box, x first.
pub(crate) fn position(index: u64, size: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = size.map(u64::from);
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
