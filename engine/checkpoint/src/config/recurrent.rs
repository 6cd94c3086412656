//! Layers that keep a state of fixed size for each sequence instead of keys and values.

use super::fields::in_range;
use super::{MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH};
use crate::error::{Error, Result};

/// Columns of a head's state that are computed together. Heads consist of whole tiles.
const TILE: usize = 16;
/// Above the kernel sizes of every published model.
const MAX_KERNEL: usize = 64;

/// A layer that keeps a state. It convolves its input with the inputs of the tokens before, and the heads of most kinds
/// then update a matrix each. A layer without heads has `key_dim` 0, and each of its channels is a head of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// The recurrence of heads.
    pub kind: RecurrentKind,
    /// The number of inputs that an output of the convolution depends on.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub kernel_bias: bool,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Heads of keys and queries. Divides `heads`.
    pub key_heads: usize,
    /// Heads of values.
    pub heads: usize,
    /// Rows of a head's state: elements of a key.
    pub key_dim: usize,
    /// Columns of a head's state: elements of a value.
    pub value_dim: usize,
    /// Whether head `h` has the key head `h % key_heads`. Otherwise consecutive heads have the same key head.
    pub tiled: bool,
}

/// How a token changes a layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// The state decays. Then its value for the token's key moves towards the token's value (gated delta net).
    DeltaNet,
    /// The state decays, and the product of key and value is added to it (Mamba-2).
    Mamba,
    /// The layer has no heads. Two gates surround the convolution.
    Convolution,
}

impl Recurrent {
    /// Elements that the convolution mixes: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.inner()
    }

    /// Elements of the keys of all heads.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of the layer's result, before it is projected to the residual stream.
    pub fn inner(&self) -> usize {
        self.heads * self.value_dim
    }

    /// The row of a channel of a delta net in a matrix that has the rows of each key head together: its query, its key, its
    /// values and their gates.
    pub fn fused_row(&self, channel: usize) -> usize {
        let keys = self.key_width();
        match channel.checked_sub(2 * keys) {
            Some(element) => self.fused_gate(element) - self.heads / self.key_heads * self.value_dim,
            None => {
                let head = channel % keys / self.key_dim;
                head * self.fused_rows() + channel / keys * self.key_dim + channel % self.key_dim
            }
        }
    }

    /// The row of an element of the gates in this matrix.
    pub fn fused_gate(&self, element: usize) -> usize {
        let values = self.heads / self.key_heads * self.value_dim;
        element / values * self.fused_rows() + 2 * self.key_dim + values + element % values
    }

    /// Rows of a key head in this matrix.
    fn fused_rows(&self) -> usize {
        2 * self.key_dim + 2 * (self.heads / self.key_heads) * self.value_dim
    }

    /// Numbers of a sequence's state: the last inputs of the convolution, and a matrix for each head.
    pub fn state(&self) -> usize {
        (self.kernel - 1) * self.channels() + self.heads * self.key_dim * self.value_dim
    }

    /// A worker's part of the layer, for `of` workers. If there are fewer key heads than workers, several workers have a
    /// copy of the same head.
    ///
    /// # Errors
    /// If the heads cannot be divided.
    pub fn part(&self, of: usize) -> Result<Recurrent> {
        let refuse = |what: &str, count: usize| {
            Err(Error::Option(format!("tensor-parallel-size: the model's {count} {what} cannot be divided by {of}")))
        };
        if !self.heads.is_multiple_of(of) {
            return refuse("recurrent heads", self.heads);
        }
        let heads = self.heads / of;
        let key_heads = match self.key_heads {
            // Whole tiles of heads have all key heads, and parts of a tile have as many key heads as heads.
            count if self.tiled && heads.is_multiple_of(count) => count,
            count if self.tiled && count.is_multiple_of(heads) => heads,
            count if self.tiled => return refuse("tiles of recurrent heads", count),
            0 => 0,
            count if count.is_multiple_of(of) => count / of,
            count if of.is_multiple_of(count) => 1,
            count => return refuse("recurrent key heads", count),
        };
        Ok(Recurrent { heads, key_heads, ..*self })
    }

    pub(super) fn check(&self) -> Result<()> {
        in_range("the kernel size of the convolution", self.kernel, MAX_KERNEL)?;
        if self.kernel == 1 {
            return Err(Error::Config("the kernel size of the convolution is 1, so layers would have no state".into()));
        }
        if self.kind == RecurrentKind::Convolution {
            return in_range("the width of the convolution", self.heads, MAX_WIDTH);
        }
        in_range("the number of recurrent heads", self.heads, MAX_HEADS)?;
        in_range("the number of recurrent key heads", self.key_heads, MAX_HEADS)?;
        in_range("the size of recurrent keys", self.key_dim, MAX_HEAD_DIM)?;
        in_range("the size of recurrent values", self.value_dim, MAX_HEAD_DIM)?;
        let Recurrent { heads, key_heads, key_dim, value_dim, .. } = *self;
        if !heads.is_multiple_of(key_heads) {
            return Err(Error::Config(format!(
                "the number of recurrent heads ({heads}) is not a multiple of the number of key heads ({key_heads})"
            )));
        }
        match [key_dim, value_dim].into_iter().find(|size| !size.is_multiple_of(TILE)) {
            Some(size) => Err(Error::Unsupported(format!(
                "recurrent heads of {size} elements are not implemented; they must be a multiple of {TILE}"
            ))),
            None => Ok(()),
        }
    }
}
