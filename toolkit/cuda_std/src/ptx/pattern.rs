//! The order of a tile in shared memory, for tensor copies and `wgmma` alike.

/// How 16-byte pieces of a tile's rows are permuted, so that neither rows nor columns meet in a bank: within each group of
/// eight rows of the pattern, a piece's number is exclusive-ored with its row's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TilePattern {
    /// They are not.
    #[default]
    Plain,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}
