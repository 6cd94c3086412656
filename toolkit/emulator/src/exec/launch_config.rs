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
}

impl LaunchConfig {
    /// Blocks of the grid, as one number.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
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

    /// The block of an index, in natural order.
    pub fn block_at(&self, index: u64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(u64::from);
        [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
    }
}
