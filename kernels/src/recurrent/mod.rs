//! Layers that keep a state for each sequence: gated delta nets, Mamba-2 and short convolutions.
//!
//! | file | kernel | computes |
//! | --- | --- | --- |
//! | [`convolution`] | [`causal_convolution`](convolution::causal_convolution()) | the convolution of each channel with its earlier inputs |
//! | [`heads`] | [`recur_heads`](heads::recur_heads()) | the recurrence of heads, token by token |
//! | [`chunked`] | [`prepare_chunks`](chunked::prepare::prepare_chunks()), [`pass_chunks`](chunked::pass::pass_chunks()) | the same in chunks of many tokens |
//!
//! The norms and gates of the results are [`rms_norm_gated`](crate::norm::rms_norm_gated()).
//!
//! # Sequences and blocks
//!
//! A launch takes some consecutive sequences of a step. Sequence `i` has the rows from `query_starts[i]` to
//! `query_starts[i + 1]`, which are the last of its `contexts[i]` tokens. Its block table begins at
//! `tables[table_starts[i]]`. Block `j` of the table has the state after the tokens of that block, or the entry is
//! [`NO_BLOCK`]. A launch reads the state in the block of the token before the first row, or begins with zeros. It
//! stores the state after the last token of each present block, and after the last row. If an earlier block of a step
//! equals the last one, only the last state is stored there. Sequences without rows are padding.
//!
//! # States
//!
//! A state has `f32` elements. It begins with the last `KERNEL - 1` inputs of the convolution,
//! `[KERNEL - 1][channels]`: the input of position `p` is in row `p % (KERNEL - 1)`. A matrix for each head follows,
//! `[heads][value_dim / 8][8][key_dim / 8][2][4]`. Row `r` and column `c` of a matrix have the index
//! `[c / 8][r % 8][r / 8][c % 8 / 4][c % 4]`, so that a warp reads 512 consecutive bytes at a time, each thread four
//! columns.
//!
//! The address of block `j` of a layer is `states + j * stride`, in vectors.

pub mod chunked;
pub mod convolution;
pub mod heads;
#[cfg(not(target_arch = "nvptx64"))]
pub mod plan;
mod rates;
mod spans;

/// The entry of a block table without a block.
pub const NO_BLOCK: u32 = u32::MAX;

/// Returns the first vectors of queries, keys and values in a row of mixed channels. All keys have `of_keys` vectors and all
/// values `of_values`.
const fn first_vectors(is_delta: bool, of_keys: u32, of_values: u32) -> [u32; 3] {
    if is_delta { [0, of_keys, 2 * of_keys] } else { [of_values + of_keys, of_values, 0] }
}
