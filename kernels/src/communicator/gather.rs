//! Gathers the logits of all parts of the vocabulary on rank 0.

use cuda_std::prelude::*;
use cuda_std::ptx::memory::load_l2;
use cuda_std::unroll::unroll;
use cuda_std::vector::Vector;

use super::exchange::{Exchange, each};

/// Puts the ranks' columns of `rows` rows next to each other in `out` on rank 0. Other ranks do not use `out`.
///
/// `part` holds this rank's columns. The `vocab` columns are divided evenly, rounded up, and the last rank has the
/// remainder. Rows of `part` and `out` are padded to whole vectors.
///
/// # Safety
/// `part` and `out` have `rows` rows of these columns in `f32`. Every rank has at least one column. The rest is as for
/// [`all_reduce()`](super::all_reduce()).
#[kernel(max_threads = 512)]
pub unsafe fn gather_logits(
    part: *const Vector,
    out: *mut u32,
    rows: u32,
    vocab: u32,
    chunk: u32,
    mailboxes: *const u64,
    epochs: *mut u32,
    abort: *const u32,
    rank: u32,
    ranks: u32,
) {
    let most = vocab.div_ceil(ranks.max(1));
    let columns = |rank: u32| most.min(vocab - (rank * most).min(vocab));
    let vectors = |rank: u32| rows * columns(rank).div_ceil(4);
    let out_stride = vocab.next_multiple_of(4);
    // SAFETY: as in `all_reduce`. Chunks are within `part`, and columns are within `out`.
    unsafe {
        let mut exchange = Exchange::resume(mailboxes, epochs, abort, (rank, ranks));
        let mut first = thread::block_idx_x() * chunk;
        while first < rows * most.div_ceil(4) {
            // The vectors of this chunk that a rank has.
            let count = |rank: u32| chunk.min(vectors(rank) - first.min(vectors(rank)));
            if !exchange.give(count(rank), |i| *part.add((first + i) as usize)) {
                return;
            }
            if rank == 0 {
                let mut from = 0;
                while from < ranks {
                    let (slot, columns) = (exchange.slot(from), columns(from));
                    let row_vectors = columns.div_ceil(4).max(1);
                    each(count(from), |i| {
                        let (row, vector) = ((first + i) / row_vectors, (first + i) % row_vectors);
                        let (Vector(words), column) = (load_l2(slot.add(i as usize)), 4 * vector);
                        let to = out.add(row as usize * out_stride as usize + (from * most + column) as usize);
                        unroll::<4>(|word| {
                            if column + (word as u32) < columns {
                                *to.add(word) = words[word];
                            }
                        });
                    });
                    from += 1;
                }
            }
            first += thread::grid_dim_x() * chunk;
        }
        exchange.suspend(epochs);
    }
}
