//! Settings of a context that a program can read back. They change nothing in the emulator.

/// Settings of a context that a program can read back.
pub(super) struct ContextSettings {
    /// The context flags, such as how the host waits.
    pub flags: u32,
    /// Limits by CUDA's numbers: stack size, `printf` buffer size and `malloc` heap size in bytes, depth and count of
    /// device-side launches, L2 fetch granularity and persisting L2 size in bytes.
    pub limits: [usize; 7],
    /// The preferred split between L1 cache and shared memory.
    pub cache: u32,
    /// The bank width of shared memory.
    pub banks: u32,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self { flags: 0, limits: [1 << 10, 1 << 20, 8 << 20, 2, 2048, 64, 0], cache: 0, banks: 1 }
    }
}
