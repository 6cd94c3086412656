//! Attention over latent vectors, and the projections between them and heads.

use kernels::attention::LATENT_SIZES;
use kernels::layout::KvFormat;
use workbench::cases::latent::{join, product};
use workbench::number::Type;
use workbench::paged::{PagedProblem, PagedSequence, PagedShape};

use super::prefill::check;
use crate::frame::gpu::{Gpu, TARGETS};

fn shape(ty: Type, heads: u32, head_size: u32, block_size: u32) -> PagedShape {
    PagedShape { ty, heads, kv_heads: 1, head_size, block_size, window: 0, format: KvFormat::Plain }
}

/// Prompts, a chunk after a prefix, and decodes in one launch. Groups do not divide tiles evenly.
#[test]
fn latent_attention_matches_the_reference() {
    let spans = [(40, 40), (1, 1), (9, 70), (1, 130), (3, 33)].map(|(new, context)| PagedSequence { new, context });
    for (i, ty) in Type::ALL.into_iter().enumerate() {
        for size in LATENT_SIZES {
            let heads = if size == 48 { 4 } else { 3 };
            check(&PagedProblem::new(shape(ty, heads, size, [8, 16][i]), &spans, 1, 5), 7);
        }
    }
}

#[test]
fn many_heads_share_a_token() {
    let spans = [PagedSequence { new: 1, context: 75 }, PagedSequence { new: 2, context: 18 }];
    check(&PagedProblem::new(shape(Type::ALL[1], 128, 576, 32), &spans, 0, 6), 0);
}

#[test]
fn heads_are_multiplied_by_their_matrices() {
    for (i, ty) in Type::ALL.into_iter().enumerate() {
        for (tokens, heads, sizes) in [(1, 1, [16, 8]), (16, 2, [48, 32]), (35, 3, [32, 264])] {
            Gpu::new(TARGETS[i].0).run(&product(ty, tokens, heads, sizes));
        }
    }
}

#[test]
fn the_parts_of_rows_are_joined() {
    for (i, (tokens, heads, sizes)) in [(1, 1, [1, 1]), (5, 4, [2, 4]), (70, 3, [8, 64])].into_iter().enumerate() {
        Gpu::new(TARGETS[i % 2].0).run(&join(tokens, heads, sizes));
    }
}
