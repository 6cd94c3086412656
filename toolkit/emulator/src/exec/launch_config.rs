//! The configuration of a launch: its grid, its blocks and their shared memory.

/// Dynamic shared memory starts at a multiple of this after what the kernel declares.
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
    /// Blocks of the grid, as one number.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Blocks of a cluster, as one number.
    pub fn cluster_size(&self) -> usize {
        self.cluster.iter().product::<u32>() as usize
    }

    /// Clusters of the grid, in each dimension.
    pub fn clusters(&self) -> [u32; 3] {
        [0, 1, 2].map(|axis| self.grid[axis] / self.cluster[axis])
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        self.block.iter().product::<u32>() as usize
    }

    /// The offset of dynamic shared memory, which lies after so many bytes that the kernel declares.
    pub fn dynamic_start(static_shared: usize) -> usize {
        static_shared.next_multiple_of(DYNAMIC_ALIGN)
    }

    /// All shared memory of a block, in bytes.
    pub fn shared(&self, static_shared: usize) -> usize {
        Self::dynamic_start(static_shared).saturating_add(self.dynamic_shared)
    }

    /// The block of a rank in the cluster of an index, in natural order.
    pub fn block_at(&self, cluster: u64, rank: usize) -> [u32; 3] {
        let [outer, inner] = [position(cluster, self.clusters()), position(rank as u64, self.cluster)];
        [0, 1, 2].map(|axis| outer[axis] * self.cluster[axis] + inner[axis])
    }
}

/// The position of an index in a box, x first.
pub(crate) fn position(index: u64, size: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = size.map(u64::from);
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}
