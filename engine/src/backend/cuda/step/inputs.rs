//! A step's inputs: everything the device must know, packed into one upload.
//!
//! Sequences that decode attends to come first, and then those of prefill. Decode's are those with one new token, and those
//! with a draft where that [suits](DecodeLaunch::suits): these are cut into parts of as many tokens as it has room for.
//!
//! A step of nothing else, whose tokens are all followed by a sample, may be padded to a [bucket](BUCKETS) of as many rows, so that
//! few recordings serve all steps. There are no more parts than rows: whatever the drafts, there is an entry for each row, and the
//! arrays that a recording reads lie where they lay whenever the bucket is the same.

use std::cell::RefCell;

use cuda_std::launch::DevicePtrMut;
use kernels::attention::decode::DecodeLaunch;
use kernels::sampling::{Adjustment, NO_MASK, Request};

use crate::backend::cuda::memory::arena::Lease;
use crate::backend::cuda::step::sequences::StepSequences;
use crate::batch::{Batch, Span};
use crate::kv::BlockMoves;
use crate::sampling::SampleRow;

/// Numbers of rows that decode steps are padded to.
pub const BUCKETS: [u32; 24] =
    [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 1024];

/// What a decode step of so many rows is padded to; none if that is more than any bucket.
pub fn bucket(rows: usize) -> Option<u32> {
    BUCKETS.into_iter().find(|&size| size as usize >= rows)
}

/// The slot of padding: no key and value are written for it.
const NO_SLOT: u32 = u32::MAX;

/// How a backend wants its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// The length of a row of logits.
    pub vocab: usize,
    /// Whether decode steps are padded to a bucket.
    pub pads: bool,
    /// The block size, if each row is to have a block table of its own.
    pub row_tables: Option<usize>,
    /// Decode attention to sequences with drafts; none where the paper's kernels attend.
    pub drafts: Option<DecodeLaunch>,
}

/// A step's inputs on the device.
pub struct StepInputs {
    /// Rows of activations, padding included.
    pub rows: u32,
    /// Sequences that decode attends to, padding included: they are the first rows. With drafts, their parts.
    pub decodes: u32,
    /// The rows of these.
    pub decode_rows: u32,
    /// Whether some of them have several new tokens.
    pub has_drafts: bool,
    /// The other sequences.
    pub prefills: u32,
    /// How many rows' logits are wanted. With a bucket it is all rows in order.
    pub logits: u32,
    /// How many rows' final hidden states are wanted; with a bucket none.
    pub hidden: u32,
    /// The size that a decode step was padded to.
    pub bucket: Option<u32>,
    /// Blocks to move first.
    pub moves: BlockMoves,
    /// Likeliest tokens that the sampling requests ask for, in all.
    pub top: u32,
    /// New tokens and context of each sequence, in the order of the rows, without padding.
    pub spans: Vec<(u32, u32)>,
    /// Entries of each row's block table, where rows have their own.
    pub row_table_stride: u32,
    /// Plans of decode attention, by their window. They are made when they are first needed.
    pub plans: RefCell<Vec<(u32, Lease)>>,
    /// The address of the upload.
    pub base: u64,
    /// Where the arrays begin in it.
    at: Offsets,
}

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Offsets {
    tokens: usize,
    positions: usize,
    slots: usize,
    contexts: usize,
    table_starts: usize,
    query_starts: usize,
    logit_rows: usize,
    hidden_rows: usize,
    tables: usize,
    swapped_out: usize,
    swapped_in: usize,
    copied: usize,
    requests: usize,
    adjustments: usize,
    masks: usize,
    row_lengths: usize,
    row_tables: usize,
}

macro_rules! arrays {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $at:ident;)*) => {
        impl StepInputs {$(
            $(#[$doc])*
            pub fn $name(&self) -> DevicePtrMut<$ty> {
                DevicePtrMut::from_address(self.base + self.at.$at as u64)
            }
        )*}
    };
}

arrays! {
    /// `[rows]`
    tokens: u32 = tokens;
    /// `[rows]`
    positions: u32 = positions;
    /// `[rows]`: block and offset as one number, negative for padding.
    slots: i32 = slots;
    /// `[decodes + prefills]`: 0 for padding.
    contexts: u32 = contexts;
    /// `[decodes + prefills]`: where each sequence's block table begins in [`Self::tables`].
    table_starts: u32 = table_starts;
    /// `[decodes + prefills + 1]`: the first row of each sequence, and the end; padding has none.
    query_starts: u32 = query_starts;
    /// `[logits]`: the rows whose logits are wanted; not with a bucket.
    logit_rows: u32 = logit_rows;
    /// `[hidden]`: the rows whose final hidden states are wanted.
    hidden_rows: u32 = hidden_rows;
    /// All block tables.
    tables: u32 = tables;
    /// The cache's blocks that are swapped out.
    swapped_out: u32 = swapped_out;
    /// The cache's blocks that are swapped in.
    swapped_in: u32 = swapped_in;
    /// Pairs: a block that is copied, and the block that it is copied to.
    copied: u32 = copied;
    /// A record for each row of logits.
    requests: Request = requests;
    /// Of all requests.
    adjustments: Adjustment = adjustments;
    /// `[masks][mask words]`: which tokens rows can be given.
    masks: u32 = masks;
    /// `[rows]`: the tokens that each row sees; for the paper's kernels.
    row_lengths: u32 = row_lengths;
    /// `[rows][row_table_stride]`: a block table for each row; for the paper's kernels.
    row_tables: u32 = row_tables;
}

impl StepInputs {
    /// Contexts of the sequences that prefill attends to.
    pub fn prefill_spans(&self) -> &[(u32, u32)] {
        &self.spans[self.spans.len() - self.prefills as usize..]
    }

    /// Contexts of the sequences that decode attends to.
    pub fn decode_spans(&self) -> &[(u32, u32)] {
        &self.spans[..self.spans.len() - self.prefills as usize]
    }

    /// Packs a batch into `bytes`, which is overwritten.
    pub fn pack(batch: Batch, rows: &[SampleRow<'_>], packing: Packing, bytes: &mut Vec<u8>) -> StepInputs {
        let Packing { vocab, pads, row_tables, drafts } = packing;
        let all = batch.tokens.len();
        let mut sequences = StepSequences::of(&batch.spans, drafts);
        let wants_all = batch.logit_rows.iter().copied().eq(0..all as u32);
        let is_decode = sequences.prefills == 0 && wants_all && batch.hidden_rows.is_empty();
        let bucket = bucket(all).filter(|_| pads && is_decode);
        let padding = bucket.map_or(0, |bucket| bucket as usize - all);
        if let Some(bucket) = bucket {
            sequences.pad(bucket as usize);
        }
        let new_row = |row: u32| {
            let s = batch.spans.partition_point(|span| span.start <= row as usize) - 1;
            sequences.first_rows[s] + row - batch.spans[s].start as u32
        };

        let mut pack = Packer(bytes);
        pack.0.clear();
        let spans = || sequences.order.iter().map(|&s| &batch.spans[s]);
        let rows_of = |list: &'_ [u32]| -> Vec<u32> {
            spans().flat_map(|span| &list[span.start..span.start + span.len]).copied().collect()
        };
        let padded = |list: Vec<u32>, with: u32| list.into_iter().chain(std::iter::repeat_n(with, padding));
        let mut at = Offsets {
            tokens: pack.words(padded(rows_of(&batch.tokens), 0)),
            positions: pack.words(padded(rows_of(&batch.positions), 0)),
            slots: pack.words(padded(rows_of(&batch.slots), NO_SLOT)),
            contexts: pack.words(sequences.contexts.iter().copied()),
            table_starts: pack.words(sequences.table_starts.iter().copied()),
            query_starts: pack.words(sequences.query_starts.iter().copied()),
            ..Offsets::default()
        };
        if bucket.is_none() {
            at.logit_rows = pack.words(batch.logit_rows.iter().map(|&row| new_row(row)));
        }
        at.hidden_rows = pack.words(batch.hidden_rows.iter().map(|&row| new_row(row)));
        at.tables = pack.words(batch.blocks.iter().copied());
        let mut row_table_stride = 0;
        if let Some(block_size) = row_tables {
            let blocks = |span: &Span| &batch.blocks[span.table..span.table + span.context.div_ceil(block_size)];
            let stride = spans().map(|span| blocks(span).len()).max().unwrap_or(0);
            at.row_lengths =
                pack.words(spans().flat_map(|span| span.context - span.len + 1..=span.context).map(|n| n as u32));
            let mut tables = Vec::with_capacity(batch.tokens.len() * stride);
            for span in spans() {
                for _ in 0..span.len {
                    let end = tables.len() + stride;
                    tables.extend_from_slice(blocks(span));
                    tables.resize(end, 0);
                }
            }
            at.row_tables = pack.words(tables);
            row_table_stride = stride as u32;
        }
        let moves = &batch.moves;
        at.swapped_out = pack.words(moves.swap_out.iter().map(|m| m.src));
        at.swapped_in = pack.words(moves.swap_in.iter().map(|m| m.dst));
        at.copied = pack.words(moves.copies.iter().flat_map(|m| [m.src, m.dst]));
        let (mut adjustments, mut masks): (Vec<Adjustment>, Vec<&[u32]>) = Default::default();
        let mut top = 0;
        let requests: Vec<Request> = rows
            .iter()
            .map(|row| {
                let (own, wanted) = (row.adjustments(), row.top.min(vocab));
                let (first_adjustment, first_top) = (adjustments.len() as u32, top);
                top += wanted as u32;
                let row = SampleRow { top: wanted, ..*row };
                let request = Request { adjustments: own.len() as u32, ..row.request() };
                adjustments.extend(own);
                // Rows that follow one prompt have the same mask.
                if let Some(own) = row.mask
                    && !masks.last().is_some_and(|last| std::ptr::eq(*last, own))
                {
                    masks.push(own);
                }
                let mask = row.mask.map_or(NO_MASK, |_| masks.len() as u32 - 1);
                Request { first_adjustment, first_top, mask, ..request }
            })
            .collect();
        at.requests = pack.words(requests.iter().flat_map(Request::words));
        at.adjustments = pack.words(adjustments.iter().flat_map(|a| a.words()));
        at.masks = pack.words(masks.into_iter().flatten().copied());

        StepInputs {
            rows: (all + padding) as u32,
            decodes: sequences.decodes as u32,
            decode_rows: sequences.decode_rows as u32,
            has_drafts: sequences.has_drafts,
            prefills: sequences.prefills as u32,
            logits: bucket.unwrap_or(batch.logit_rows.len() as u32),
            hidden: batch.hidden_rows.len() as u32,
            bucket,
            moves: batch.moves,
            top,
            spans: spans().map(|span| (span.len as u32, span.context as u32)).collect(),
            row_table_stride,
            plans: RefCell::default(),
            base: 0,
            at,
        }
    }
}

/// Puts arrays one after the other, each aligned to 16 bytes.
struct Packer<'a>(&'a mut Vec<u8>);

impl Packer<'_> {
    fn words(&mut self, words: impl IntoIterator<Item = u32>) -> usize {
        let at = self.0.len().next_multiple_of(16);
        self.0.resize(at, 0);
        self.0.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        at
    }
}
