//! A step's inputs: everything the device must know, packed into one upload.
//!
//! Sequences with one new token come first: they are served by the decode kernel, the others by the prefill kernel. A
//! step of nothing else may be padded to a [bucket](BUCKETS), so that few recordings serve all batch sizes; the arrays that
//! a recording reads lie where they lay whenever the bucket is the same.

use std::cell::RefCell;

use cuda_std::launch::DevicePtrMut;
use kernels::sampling::{Adjustment, NO_MASK, Request};

use crate::backend::cuda::memory::arena::Lease;
use crate::batch::{Batch, Span};
use crate::kv::BlockMoves;
use crate::sampling::SampleRow;

/// Numbers of sequences that decode steps are padded to.
pub const BUCKETS: [u32; 24] =
    [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 1024];

/// What a decode step of so many sequences is padded to; none if that is more than any bucket.
pub fn bucket(sequences: usize) -> Option<u32> {
    BUCKETS.into_iter().find(|&size| size as usize >= sequences)
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
}

/// A step's inputs on the device.
pub struct StepInputs {
    /// Rows of activations, padding included.
    pub rows: u32,
    /// Sequences with one new token, padding included: they are the first rows.
    pub decodes: u32,
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
    /// `[prefills + 1]`: the first row of each sequence of several tokens, and the end.
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
    /// Contexts of the sequences with several new tokens.
    pub fn prefill_spans(&self) -> &[(u32, u32)] {
        &self.spans[self.spans.len() - self.prefills as usize..]
    }

    /// Contexts of the sequences with one.
    pub fn decode_spans(&self) -> &[(u32, u32)] {
        &self.spans[..self.spans.len() - self.prefills as usize]
    }

    /// Packs a batch into `bytes`, which is overwritten.
    pub fn pack(batch: Batch, rows: &[SampleRow<'_>], packing: Packing, bytes: &mut Vec<u8>) -> StepInputs {
        let Packing { vocab, pads, row_tables } = packing;
        // Stable: sequences of a kind keep their order.
        let mut order: Vec<usize> = (0..batch.spans.len()).collect();
        order.sort_by_key(|&s| batch.spans[s].len != 1);
        let real = batch.spans.iter().filter(|span| span.len == 1).count();
        let prefills = order.len() - real;
        let wants_all = batch.logit_rows.iter().copied().eq(0..real as u32);
        let is_decode = prefills == 0 && wants_all && batch.hidden_rows.is_empty();
        let bucket = bucket(real).filter(|_| pads && is_decode);
        let decodes = bucket.unwrap_or(real as u32);
        let padding = decodes as usize - real;

        // Where each sequence's rows begin, in their new order.
        let (mut starts, mut end) = (vec![0; batch.spans.len()], 0);
        let mut query_starts = Vec::with_capacity(prefills + 1);
        for (i, &s) in order.iter().enumerate() {
            starts[s] = end;
            if i >= real {
                query_starts.push(end);
            }
            end += batch.spans[s].len as u32;
        }
        query_starts.push(end);
        let new_row = |row: u32| {
            let s = batch.spans.partition_point(|span| span.start <= row as usize) - 1;
            starts[s] + row - batch.spans[s].start as u32
        };

        let mut pack = Packer(bytes);
        pack.0.clear();
        let spans = || order.iter().map(|&s| &batch.spans[s]);
        let rows_of = |list: &'_ [u32]| -> Vec<u32> {
            spans().flat_map(|span| &list[span.start..span.start + span.len]).copied().collect()
        };
        let of_each = |get: fn(&Span) -> usize| spans().map(|span| get(span) as u32).collect::<Vec<u32>>();
        let padded = |list: Vec<u32>, with: u32| list.into_iter().chain(std::iter::repeat_n(with, padding));
        let mut at = Offsets {
            tokens: pack.words(padded(rows_of(&batch.tokens), 0)),
            positions: pack.words(padded(rows_of(&batch.positions), 0)),
            slots: pack.words(padded(rows_of(&batch.slots), NO_SLOT)),
            contexts: pack.words(padded(of_each(|s| s.context), 0)),
            table_starts: pack.words(padded(of_each(|s| s.table), 0)),
            ..Offsets::default()
        };
        at.query_starts = pack.words(query_starts);
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
            rows: batch.tokens.len() as u32 + padding as u32,
            decodes,
            prefills: prefills as u32,
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
