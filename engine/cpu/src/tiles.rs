//! The output of a projection: dividing it into tiles for threads, and finishing its sums.

use super::math::activate;
use super::threads::Threads;
use checkpoint::config::Activation;

/// Maximum number of rows in a tile. The activations of this many tokens fit the second-level cache.
const TOKENS: usize = 64;

/// Part of the output: a range of columns of some consecutive rows.
pub(super) struct Tile<'a> {
    pub row: usize,
    pub column: usize,
    pub out: Vec<&'a mut [f32]>,
}

impl<'a> Tile<'a> {
    /// Divides `out`, which has rows of `cols` elements, into tiles of nearly equal height. Heights
    /// are multiples of `unit` and widths are multiples of `band`, except for the last. The number of tiles depends on
    /// how many threads are worth using for `work`.
    pub fn cut(
        out: &'a mut [f32],
        cols: usize,
        (unit, band): (usize, usize),
        work: usize,
        threads: &Threads,
    ) -> Vec<Self> {
        if out.is_empty() {
            return Vec::new();
        }
        let rows = out.len() / cols;
        let tall = rows.div_ceil(rows.div_ceil(TOKENS)).next_multiple_of(unit);
        let parts = threads.parts(work, cols.div_ceil(band));
        let wide = cols.div_ceil(parts.div_ceil(rows.div_ceil(tall))).next_multiple_of(band);
        let tiles = out.chunks_mut(tall * cols).enumerate().flat_map(|(i, block)| {
            let mut tiles: Vec<Tile<'_>> = (0..cols)
                .step_by(wide)
                .map(|column| Tile { row: i * tall, column, out: Vec::with_capacity(block.len() / cols) })
                .collect();
            for row in block.chunks_mut(cols) {
                row.chunks_mut(wide).zip(&mut tiles).for_each(|(part, tile)| tile.out.push(part));
            }
            tiles
        });
        tiles.collect()
    }
}

/// The steps that finish a projection's result.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    /// `[N]`
    pub bias: Option<&'a [f32]>,
    pub act: Option<Activation>,
    /// Add to the output's contents instead of replacing them.
    pub add: bool,
}

impl Finish<'_> {
    /// Adds the bias to part of a row, beginning at `column`, and applies the activation.
    #[inline(always)]
    pub fn apply(&self, row: &mut [f32], column: usize) {
        if let Some(bias) = self.bias {
            row.iter_mut().zip(&bias[column..]).for_each(|(y, b)| *y += b);
        }
        if let Some(act) = self.act {
            activate(row, act);
        }
    }
}
