//! The query rows of a warp: loads their queries, masks the scores of invisible keys, and stores their outputs.
//!
//! Queries and outputs use the same part of shared memory, `[head_size / 8][tile_rows][8]`. A warp touches only its own
//! rows there. In global memory it moves whole sectors, 32 bytes of 16 rows at a time.

use cuda_std::half::Half2;
use cuda_std::shared::shared_offset;
use cuda_std::unroll::hidden;
use cuda_std::vector::Vector;
use cuda_std::warp::{self, FULL_MASK, lane_id};

use super::Batch;
use super::fragment::ScoreFragments;
use super::shape::{FRAGMENT, columns, sharers, tile_keys, tile_rows};
use super::tile::{Sight, Tile};
use crate::attention::softcap::sink_weight;
use crate::attention::value_size;
use crate::element::Element;
use crate::kv_element::KvElement;
use crate::layout::VECTOR;
use cuda_std::ptx::cp_async;
use cuda_std::ptx::memory::store_l2;

/// The query rows of a warp.
#[derive(Clone, Copy)]
pub struct QueryRows<const D: u32> {
    tile: Tile,
    /// The KV head, and the number of KV heads.
    head: u32,
    kv_heads: u32,
    /// The warp's first row, counted within the tile.
    first: u32,
    /// Row fragments per warp. Callers pass a constant.
    fragments: u32,
    /// The warp's number among those that share its rows.
    part: u32,
    /// The tile's rows in shared memory.
    image: *mut Vector,
}

impl<const D: u32> QueryRows<D> {
    /// Creates this warp's rows of a tile, which is at `image` in shared memory.
    #[inline(always)]
    pub fn new(tile: Tile, head: u32, kv_heads: u32, image: *mut Vector, fragments: u32) -> Self {
        let (first, part) = (warp::warp_id() / sharers(D) * FRAGMENT * fragments, warp::warp_id() % sharers(D));
        Self { tile, head, kv_heads, first, fragments, part, image }
    }

    /// Returns the same rows, whose addresses are computed again. Otherwise they would take registers in between.
    #[inline(always)]
    pub fn again(self) -> Self {
        let place = warp::warp_id() / sharers(D) * FRAGMENT * self.fragments;
        Self { first: hidden(place), image: self.image.wrapping_add(hidden(0) as usize), ..self }
    }

    /// Returns the keys that the rows see, or `None` if none of the rows is in the sequence.
    #[inline(always)]
    pub fn sight(&self, window: u32) -> Option<Sight> {
        self.tile.sight(self.tile.first + self.first, FRAGMENT * self.fragments, window)
    }

    /// Returns the address of a row's vector in shared memory.
    #[inline(always)]
    pub fn place(&self, row: u32, chunk: u32) -> *mut Vector {
        self.image.wrapping_add((chunk * tile_rows(D) + self.first + row) as usize)
    }

    /// Returns the first element of the rows' outputs that this warp computes.
    #[inline(always)]
    pub fn first_column(&self) -> u32 {
        self.part * columns(D)
    }

    /// Returns the pairs of chunks that this warp moves of a row of `elements`: the whole row, or the warp's part of it.
    #[inline(always)]
    fn pairs(&self, elements: u32) -> core::ops::Range<u32> {
        let count = elements / sharers(D) / VECTOR / 2;
        self.part * count..(self.part + 1) * count
    }

    /// Returns the [weight of the sink](sink_weight) for this lane's row in a half of a fragment.
    ///
    /// # Safety
    /// `sinks` is null or has a logit for each query head.
    #[inline(always)]
    pub unsafe fn sink(&self, sinks: *const f32, fragment: u32, half: u32, reference: f32) -> f32 {
        let row = self.tile.first + self.first + fragment * FRAGMENT + half * 8 + lane_id() / 4;
        let head = self.head * self.tile.group + self.tile.token(row).1;
        // SAFETY: every row has a query head, even past the sequence's end. The rest is this function's contract.
        unsafe { sink_weight(sinks, head, reference) }
    }

    /// Returns the row within a fragment and the chunk within a pair that this lane moves. Shared memory takes the
    /// vectors of eight lanes at a time, and these eight have consecutive addresses.
    #[inline(always)]
    fn lane() -> (u32, u32) {
        (lane_id() / 16 * 8 + lane_id() % 8, lane_id() / 8 % 2)
    }

    /// Returns the index of a row's chunk in an array with heads of `size` elements and `stride` elements between tokens, or
    /// `None` if the row is past the sequence's end.
    #[inline(always)]
    fn element(&self, row: u32, chunk: u32, size: u32, stride: u32) -> Option<usize> {
        let row = self.tile.first + self.first + row;
        let (token, member) = self.tile.token(row);
        let head = self.head * self.tile.group + member;
        let at = (self.tile.start + token) as usize * stride as usize + (head * size + chunk * VECTOR) as usize;
        if row < self.tile.rows { Some(at) } else { None }
    }

    /// Starts the copies of the queries, without committing their group. Rows past the sequence's end become zeros.
    ///
    /// # Safety
    /// As for [`paged_prefill()`](super::paged_prefill()).
    #[inline(always)]
    pub unsafe fn copy_queries(&self, batch: &Batch) {
        let (lane_row, lane_chunk) = Self::lane();
        for fragment in 0..self.fragments {
            let row = fragment * FRAGMENT + lane_row;
            let (at, bytes) = match self.element(row, lane_chunk, D, batch.query_stride) {
                Some(at) => (at, size_of::<Vector>() as u32),
                None => (0, 0),
            };
            for pair in self.pairs(D) {
                let to = shared_offset(self.place(row, 2 * pair + lane_chunk));
                // SAFETY: the row is one of the query rows, or no byte is read.
                unsafe {
                    let from = batch.query.add(at).cast::<Vector>().add(2 * pair as usize);
                    cp_async::copy_cg_zero_fill(to, from.cast(), bytes);
                }
            }
        }
    }

    /// Returns the position of the token of this lane's row in a half of a fragment.
    #[inline(always)]
    pub fn position(&self, fragment: u32, half: u32) -> u32 {
        self.tile.position(self.tile.first + self.first + fragment * FRAGMENT + half * 8 + lane_id() / 4)
    }

    /// Sets the scores of keys that a row does not see to minus infinity, so that their weight is 0. `key` is the
    /// tile's first key.
    #[inline(always)]
    pub fn mask<T: KvElement>(&self, scores: &mut ScoreFragments, key: u32, window: u32) {
        for fragment in 0..self.fragments {
            for half in 0..2 {
                let to_first = self.position(fragment, half).wrapping_sub(key + lane_id() % 4 * 2);
                for (n, four) in
                    scores[fragment as usize][..tile_keys(D, T::FORMAT) as usize / 8].iter_mut().enumerate()
                {
                    for i in 0..2 {
                        // For a key after the row's position, the distance wraps around to a very large number.
                        let distance = to_first.wrapping_sub(8 * n as u32 + i);
                        if distance >= window {
                            four[(2 * half + i) as usize] = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }

    /// Writes the outputs of the fragments, each row multiplied by its factor.
    ///
    /// Each entry of a fragment covers eight columns. A fragment has at least the entries of the warp's columns.
    ///
    /// # Safety
    /// All lanes of the warp call this together, once no lane reads the queries any more, because the outputs overwrite
    /// them. The rest is as for [`paged_prefill()`](super::paged_prefill()).
    #[inline(always)]
    pub unsafe fn store<T: KvElement, const N: usize>(
        &self,
        to: *mut u16,
        output: &[[[f32; 4]; N]],
        factors: &[[f32; 2]],
    ) {
        let (lane_row, lane_chunk) = Self::lane();
        // SAFETY: by this function's contract, all lanes reach the warp's barriers. The rows in shared memory are the
        // warp's own, and only rows of the sequence are stored.
        unsafe {
            for fragment in 0..self.fragments as usize {
                for half in 0..2 {
                    let row = fragment as u32 * FRAGMENT + half as u32 * 8 + lane_id() / 4;
                    let factor = factors[fragment][half];
                    for chunk in 0..columns(D) / VECTOR {
                        let four = output[fragment][chunk as usize];
                        let pair = <T::Element as Element>::Pair::from_f32([
                            four[2 * half] * factor,
                            four[2 * half + 1] * factor,
                        ]);
                        *self
                            .place(row, self.first_column() / VECTOR + chunk)
                            .cast::<u32>()
                            .add(lane_id() as usize % 4) = pair.to_bits();
                    }
                }
            }
            warp::sync_warp(FULL_MASK);
            for fragment in 0..self.fragments {
                let row = fragment * FRAGMENT + lane_row;
                let size = value_size(D);
                let stride = self.kv_heads * self.tile.group * size;
                let Some(at) = self.element(row, lane_chunk, size, stride) else { continue };
                for pair in self.pairs(size) {
                    let vector = *self.place(row, 2 * pair + lane_chunk);
                    store_l2(to.add(at).cast::<Vector>().add(2 * pair as usize), vector);
                }
            }
        }
    }
}
