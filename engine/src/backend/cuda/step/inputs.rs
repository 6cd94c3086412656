//! A step's inputs: all data that the device needs, packed into one upload.
//!
//! Sequences for decode attention come first, then those for prefill attention. Decode attention computes sequences
//! with one new token. It also computes sequences with a draft if [suitable](DecodeLaunch::suits). These are divided
//! into parts of as many tokens as the kernel can process together.
//!
//! A step may be padded to a [bucket](BUCKETS) of rows if it has only decode sequences and all its tokens are followed
//! by a sample. A few recordings then serve all steps. A step never has more parts than rows, so each array has an
//! entry for each row. Whatever the drafts, the arrays that a recording reads are therefore at the same addresses for
//! every step of the same bucket.

use std::cell::RefCell;

use cuda_std::launch::DevicePtrMut;
use kernels::attention::decode::DecodeLaunch;
use kernels::sampling::{Adjustment, NO_MASK, Request};

use crate::backend::cuda::memory::arena::Lease;
use crate::backend::cuda::step::sequences::StepSequences;
use crate::batch::{Batch, GroupTables, Span};
use crate::kv::BlockMoves;
use crate::sampling::SampleRow;

/// Numbers of rows that decode steps are padded to.
pub const BUCKETS: [u32; 24] =
    [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 1024];

/// Returns the bucket for a decode step of `rows` rows, or `None` if it is larger than any bucket.
pub fn bucket(rows: usize) -> Option<u32> {
    BUCKETS.into_iter().find(|&size| size as usize >= rows)
}

/// The slot of padding. No key and value are written for it.
const NO_SLOT: u32 = u32::MAX;

/// A backend's requirements for its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// The length of a row of logits.
    pub vocab: usize,
    /// Whether decode steps are padded to a bucket.
    pub pads: bool,
    /// The block size, if each row needs its own block table.
    pub row_tables: Option<usize>,
    /// Decode attention for sequences with drafts. `None` with the paper's kernels.
    pub drafts: Option<DecodeLaunch>,
}

/// A step's inputs on the device.
pub struct StepInputs {
    /// Rows of activations, including padding.
    pub rows: u32,
    /// Number of sequences for decode attention, including padding. With drafts, the number of their parts. Their rows
    /// come first.
    pub decodes: u32,
    /// Rows of the decode sequences.
    pub decode_rows: u32,
    /// Whether some decode sequences have several new tokens.
    pub has_drafts: bool,
    /// Number of sequences for prefill attention.
    pub prefills: u32,
    /// Number of rows whose logits are needed. With a bucket these are all rows in order.
    pub logits: u32,
    /// Number of rows whose final hidden states are needed. Always 0 with a bucket.
    pub hidden: u32,
    /// The number of rows after padding, if the step was padded.
    pub bucket: Option<u32>,
    /// The block moves that precede the step.
    pub moves: BlockMoves,
    /// Sum over all sampling requests of the number of most likely tokens to return.
    pub top: u32,
    /// New tokens and context of each sequence, in the order of the rows, without padding.
    pub spans: Vec<(u32, u32)>,
    /// Entries of each row's block table, if rows have their own.
    pub row_table_stride: u32,
    /// Plans of decode attention, computed when they are first needed.
    pub plans: RefCell<Vec<(PlanKind, Lease)>>,
    /// The address of the upload.
    pub base: u64,
    /// The offsets of the arrays in the upload.
    at: Offsets,
}

/// The properties of layers that a plan of decode attention depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanKind {
    /// The number of positions that a token sees, or 0 for all.
    pub window: u32,
    /// See [`DecodeLaunch::streams`].
    pub streams: u32,
    /// Blocks in the grid.
    pub slots: u32,
}

/// Offsets in bytes.
#[derive(Debug, Default)]
struct Offsets {
    tokens: usize,
    positions: usize,
    contexts: usize,
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
    groups: Vec<GroupOffsets>,
}

/// Offsets in bytes of the arrays of a group of layers.
#[derive(Clone, Debug, Default)]
struct GroupOffsets {
    slots: usize,
    table_starts: usize,
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
    /// `[decodes + prefills]`: the context length, or 0 for padding.
    contexts: u32 = contexts;
    /// `[decodes + prefills + 1]`: the first row of each sequence, then the end. Padding has no rows.
    query_starts: u32 = query_starts;
    /// `[logits]`: the rows whose logits are needed. Absent with a bucket.
    logit_rows: u32 = logit_rows;
    /// `[hidden]`: the rows whose final hidden states are needed.
    hidden_rows: u32 = hidden_rows;
    /// The block tables of all groups.
    tables: u32 = tables;
    /// The cache's blocks to swap out.
    swapped_out: u32 = swapped_out;
    /// The cache's blocks to swap in.
    swapped_in: u32 = swapped_in;
    /// Pairs of a block and the block that it is copied to.
    copied: u32 = copied;
    /// The sampling request for each row of logits.
    requests: Request = requests;
    /// The adjustments of all requests.
    adjustments: Adjustment = adjustments;
    /// `[masks][mask words]`: the tokens that rows may be given.
    masks: u32 = masks;
    /// `[rows]`: the number of tokens that each row sees, for the paper's kernels.
    row_lengths: u32 = row_lengths;
}

impl StepInputs {
    /// `[rows]`: a group's slots, `block * block_size + offset`, or a negative number for padding.
    pub fn slots(&self, group: usize) -> DevicePtrMut<i32> {
        DevicePtrMut::from_address(self.base + self.at.groups[group].slots as u64)
    }

    /// `[decodes + prefills]`: the index in [`Self::tables`] of each sequence's block table in a group.
    pub fn table_starts(&self, group: usize) -> DevicePtrMut<u32> {
        DevicePtrMut::from_address(self.base + self.at.groups[group].table_starts as u64)
    }

    /// `[rows][row_table_stride]`: a group's block table for each row, for the paper's kernels.
    pub fn row_tables(&self, group: usize) -> DevicePtrMut<u32> {
        DevicePtrMut::from_address(self.base + self.at.groups[group].row_tables as u64)
    }

    /// New tokens and contexts of the sequences for prefill attention.
    pub fn prefill_spans(&self) -> &[(u32, u32)] {
        &self.spans[self.spans.len() - self.prefills as usize..]
    }

    /// New tokens and contexts of the sequences for decode attention.
    pub fn decode_spans(&self) -> &[(u32, u32)] {
        &self.spans[..self.spans.len() - self.prefills as usize]
    }

    /// Packs a batch into `bytes`, replacing its contents.
    pub fn pack(mut batch: Batch, rows: &[SampleRow<'_>], packing: Packing, bytes: &mut Vec<u8>) -> StepInputs {
        let Packing { vocab, pads, row_tables, drafts } = packing;
        let all = batch.tokens.len();
        if batch.groups.is_empty() {
            batch.groups.push(GroupTables::default()); // a batch that only moves blocks
        }
        batch.moves.sort_by_group();
        let mut sequences = StepSequences::new(&batch.spans, drafts);
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
        let spans: Vec<Span> = sequences.order.iter().map(|&s| batch.spans[s]).collect();

        let mut pack = Packer(bytes);
        pack.0.clear();
        let mut at = pack.rows(&batch, &sequences, &spans, padding);
        if bucket.is_none() {
            at.logit_rows = pack.words(batch.logit_rows.iter().map(|&row| new_row(row)));
        }
        at.hidden_rows = pack.words(batch.hidden_rows.iter().map(|&row| new_row(row)));
        at.tables = pack.words(batch.groups.iter().flat_map(|group| &group.blocks).copied());
        let row_table_stride =
            row_tables.map_or(0, |block_size| pack.row_tables(&spans, &batch.groups, block_size, &mut at));
        let moves = &batch.moves;
        at.swapped_out = pack.words(moves.swap_out.iter().map(|m| m.src));
        at.swapped_in = pack.words(moves.swap_in.iter().map(|m| m.dst));
        at.copied = pack.words(moves.copies.iter().flat_map(|m| [m.src, m.dst]));
        let top = pack.requests(rows, vocab, &mut at);

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
            spans: spans.iter().map(|span| (span.len as u32, span.context as u32)).collect(),
            row_table_stride,
            plans: RefCell::default(),
            base: 0,
            at,
        }
    }
}

/// Concatenates arrays, each aligned to 16 bytes.
struct Packer<'a>(&'a mut Vec<u8>);

impl Packer<'_> {
    fn words(&mut self, words: impl IntoIterator<Item = u32>) -> usize {
        let at = self.0.len().next_multiple_of(16);
        self.0.resize(at, 0);
        self.0.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        at
    }

    /// Packs the arrays that a recording reads: their lengths, and so their addresses, depend only on the numbers of
    /// rows and groups. The block tables of the groups are one array, because their own lengths vary.
    fn rows(&mut self, batch: &Batch, sequences: &StepSequences, spans: &[Span], padding: usize) -> Offsets {
        let rows_of = |list: &'_ [u32]| -> Vec<u32> {
            spans.iter().flat_map(|span| &list[span.start..span.start + span.len]).copied().collect()
        };
        let padded = |list: Vec<u32>, with: u32| list.into_iter().chain(std::iter::repeat_n(with, padding));
        let mut at = Offsets {
            tokens: self.words(padded(rows_of(&batch.tokens), 0)),
            positions: self.words(padded(rows_of(&batch.positions), 0)),
            groups: vec![GroupOffsets::default(); batch.groups.len()],
            ..Offsets::default()
        };
        for (at, group) in at.groups.iter_mut().zip(&batch.groups) {
            // Groups of states have no slots, but any group's slots show which rows are padding.
            let slots = if group.slots.is_empty() { vec![0; batch.tokens.len()] } else { rows_of(&group.slots) };
            at.slots = self.words(padded(slots, NO_SLOT));
        }
        at.contexts = self.words(sequences.contexts.iter().copied());
        let mut first = 0;
        for (at, group) in at.groups.iter_mut().zip(&batch.groups) {
            at.table_starts = self.words(sequences.table_starts.iter().map(|start| first + start));
            first += group.blocks.len() as u32;
        }
        at.query_starts = self.words(sequences.query_starts.iter().copied());
        at
    }

    /// Packs a block table for each row of the sequences in each group, all of the same length. Returns that length.
    fn row_tables(&mut self, spans: &[Span], groups: &[GroupTables], block_size: usize, at: &mut Offsets) -> u32 {
        let entries = |span: &Span| span.context.div_ceil(block_size);
        let stride = spans.iter().map(entries).max().unwrap_or(0);
        let lengths = spans.iter().flat_map(|span| span.context - span.len + 1..=span.context);
        at.row_lengths = self.words(lengths.map(|n| n as u32));
        for (at, group) in at.groups.iter_mut().zip(groups) {
            let mut tables = Vec::new();
            for span in spans {
                for _ in 0..span.len {
                    let end = tables.len() + stride;
                    tables.extend_from_slice(&group.blocks[span.table..span.table + entries(span)]);
                    tables.resize(end, 0);
                }
            }
            at.row_tables = self.words(tables);
        }
        stride as u32
    }

    /// Packs the sampling requests of the rows of logits. Returns the number of most likely tokens to return.
    fn requests(&mut self, rows: &[SampleRow<'_>], vocab: usize, at: &mut Offsets) -> u32 {
        let (mut adjustments, mut masks): (Vec<Adjustment>, Vec<&[u32]>) = Default::default();
        let mut top = 0;
        let mut requests = Vec::with_capacity(rows.len());
        for row in rows {
            let (own, wanted) = (row.adjustments(), row.top.min(vocab));
            let (first_adjustment, first_top) = (adjustments.len() as u32, top);
            top += wanted as u32;
            let request = SampleRow { top: wanted, ..*row }.request();
            // Rows with the same prompt have the same mask.
            if let Some(own) = row.mask
                && !masks.last().is_some_and(|last| std::ptr::eq(*last, own))
            {
                masks.push(own);
            }
            let mask = row.mask.map_or(NO_MASK, |_| masks.len() as u32 - 1);
            requests.push(Request { adjustments: own.len() as u32, first_adjustment, first_top, mask, ..request });
            adjustments.extend(own);
        }
        at.requests = self.words(requests.iter().flat_map(Request::words));
        at.adjustments = self.words(adjustments.iter().flat_map(|a| a.words()));
        at.masks = self.words(masks.into_iter().flatten().copied());
        top
    }
}
