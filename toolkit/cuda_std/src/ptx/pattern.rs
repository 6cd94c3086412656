//! The order of a tile in shared memory, for tensor copies and `wgmma`.

/// The permutation (swizzle) of the 16-byte pieces of a tile's rows, which avoids bank conflicts along both rows and
/// columns. Within each group of eight rows of the pattern, a piece's number is XORed with its row's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TilePattern {
    /// No permutation.
    #[default]
    Plain,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}
