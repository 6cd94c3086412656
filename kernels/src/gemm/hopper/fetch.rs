//! The fetching lane, which fills the ring with tiles of both operands and of the previous output.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::unroll;

use super::output::{PASS, TILE, TILE_BYTES, adds_tiles};
use super::pair::Pair;
use super::ring::{Ring, RingPlace};
use super::{BEFORE_BYTES, GROUP_ROWS, ROWS, a_at, b_at, depth, parts, stage_bytes};
use crate::gemm::operand::DEPTH;
use crate::gemm::prefill::place;

/// The tiles of a product that a cluster of blocks computes.
#[derive(Clone, Copy)]
pub struct TileGrid {
    /// Rows of tiles. A cluster's tile has a row of tiles for each block.
    pub rows: u32,
    /// Columns of tiles.
    pub columns: u32,
    /// Distance from a cluster's tile to its next.
    pub stride: u32,
}

/// The fetching lane's arguments.
pub struct Fetch<'a, const COLUMNS: u32> {
    /// The activations.
    pub x: &'a CuTensorMap,
    /// The weight.
    pub weight: &'a CuTensorMap,
    /// The output, if the product is added to it.
    pub tiles: &'a CuTensorMap,
    /// The destination.
    pub ring: Ring,
    /// The block's place in its cluster.
    pub pair: Pair,
    /// The tiles of the product.
    pub grid: TileGrid,
    /// The first ring slot along `k`, and the one after the last.
    pub steps: (u32, u32),
    /// The epilogue's bits.
    pub epilogue: u32,
}

impl<const COLUMNS: u32> Fetch<'_, COLUMNS> {
    /// Fetches all tiles from `tile` on.
    ///
    /// # Safety
    /// Only one lane of the block calls this, only this call fills the ring, and no slot is in use. `tile` exists and has
    /// at least one step.
    #[inline(always)]
    pub unsafe fn run(&self, mut tile: u32) {
        let (Self { ring, grid, .. }, (first, last)) = (self, self.steps);
        let mut at = RingPlace::default();
        // No launch writes the weight, so its first ring of tiles loads while earlier launches still run.
        let (row, column) = self.origin(tile);
        // SAFETY: only this lane fills the ring, and no slot is in use. The copies bring exactly these bytes, and there
        // is a tile.
        let mut step = unsafe {
            ring.fill_first(
                &mut at,
                (first, last),
                stage_bytes(COLUMNS),
                |to, step, full| self.load_weight(to, step, column, full),
                |to, step, full| self.load_x(to, step, row, full),
            )
        };
        while tile < grid.rows * grid.columns {
            let (row, column) = self.origin(tile);
            while step < last {
                let to = ring.tiles + at.stage * stage_bytes(COLUMNS);
                let load = |full: u32| {
                    self.load_x(to, step, row, full);
                    self.load_weight(to, step, column, full);
                };
                // SAFETY: only this lane fills the ring. The copies bring exactly these bytes, some from other blocks
                // of the cluster.
                unsafe { ring.fill(&mut at, stage_bytes(COLUMNS), load) };
                step += 1;
            }
            if adds_tiles(self.epilogue) && thread::block_idx_y() == 0 {
                self.load_before(&mut at, row, column);
            }
            step = first;
            tile += grid.stride;
        }
        if self.pair.shift != 0 {
            // The other block arrives at this block's barriers until it has read its last tile.
            // SAFETY: this lane alone has filled the ring.
            unsafe { ring.drain(at) };
        }
    }

    /// Returns the first token and the first weight row of a tile of the product.
    #[inline(always)]
    fn origin(&self, tile: u32) -> (i32, i32) {
        let Self { grid, pair, .. } = self;
        let (tile_m, tile_n) = place(tile, grid.rows, grid.columns);
        ((((tile_m << pair.shift) + pair.rank) * ROWS) as i32, (tile_n * COLUMNS) as i32)
    }

    /// Starts the copies of the activations to a free slot.
    #[inline(always)]
    fn load_x(&self, to: u32, step: u32, row: i32, full: u32) {
        unroll!(part in [0 1] {
            if part < parts(COLUMNS) {
                let along = (step * depth(COLUMNS) + part * DEPTH) as i32;
                // SAFETY: the slot is free and has room for the tile, and the map describes the activations.
                unsafe { tensor::load_2d(to + a_at(part), self.x, [along, row], full) };
            }
        });
    }

    /// Starts the copies of the weight to a free slot.
    #[inline(always)]
    fn load_weight(&self, to: u32, step: u32, column: i32, full: u32) {
        unroll!(part in [0 1] {
            if part < parts(COLUMNS) {
                let along = (step * depth(COLUMNS) + part * DEPTH) as i32;
                // SAFETY: as for the activations, in all blocks of the cluster.
                unsafe {
                    self.pair.load_weight::<COLUMNS>(to + b_at(COLUMNS, part), self.weight, [along, column], full);
                };
            }
        });
    }

    /// Fetches the previous output of a tile.
    #[inline(always)]
    fn load_before(&self, at: &mut RingPlace, row: i32, column: i32) {
        let mut pass = 0;
        while pass < COLUMNS {
            let to = self.ring.tiles + at.stage * stage_bytes(COLUMNS);
            let load = |full: u32| {
                unroll!(part in [0 1 2 3] {
                    let (row, column) = (row + part / 2 * GROUP_ROWS as i32, column + pass as i32 + part % 2 * TILE as i32);
                    // SAFETY: the slot is free and has room for all parts, and the map describes the output.
                    unsafe { tensor::load_2d(to + part as u32 * TILE_BYTES, self.tiles, [column, row], full) };
                });
            };
            // SAFETY: only this lane fills the ring, and the copies bring exactly these bytes.
            unsafe { self.ring.fill(at, BEFORE_BYTES, load) };
            pass += PASS;
        }
    }
}
