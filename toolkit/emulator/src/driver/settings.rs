//! What a program sets in a context and asks for again. It changes nothing in the emulator.

/// What a program sets in a context and asks for again.
pub(super) struct ContextSettings {
    /// How the host waits.
    pub flags: u32,
    /// Sizes in bytes, by CUDA's numbers: stack, buffer of `printf`, heap of `malloc`, depth and count of launches by
    /// kernels, least fetch from the L2 cache, and what persists in it.
    pub limits: [usize; 7],
    /// What the L1 cache and shared memory get of what they share.
    pub cache: u32,
    /// The width of shared memory's banks.
    pub banks: u32,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self { flags: 0, limits: [1 << 10, 1 << 20, 8 << 20, 2, 2048, 64, 0], cache: 0, banks: 1 }
    }
}
