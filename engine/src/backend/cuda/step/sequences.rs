//! A step's sequences in the form that attention uses: in the order of their rows, with drafts divided into parts.

use kernels::attention::decode::{DecodeLaunch, is_draft};

use crate::batch::Span;

/// The sequences of a step. The first ones use decode attention: those with one new token, and those with drafts if
/// suitable.
#[derive(Debug)]
pub struct StepSequences {
    /// The indices in the batch of the sequences, in the order of their rows.
    pub order: Vec<usize>,
    /// The first row of each sequence of the batch.
    pub first_rows: Vec<u32>,
    /// Whether decode attention computes sequences with several new tokens.
    pub has_drafts: bool,
    /// Number of parts for decode attention.
    pub decodes: usize,
    /// The rows of these parts, which come first.
    pub decode_rows: usize,
    /// Number of sequences for prefill attention, which follow.
    pub prefills: usize,
    /// Number of cached tokens that each part sees, in the order of the rows. 0 for padding.
    pub contexts: Vec<u32>,
    /// The start of each part's block table.
    pub table_starts: Vec<u32>,
    /// The first row of each part, then the end.
    pub query_starts: Vec<u32>,
}

impl StepSequences {
    /// Arranges the sequences of a batch. `drafts` computes sequences with drafts if that is
    /// [suitable](DecodeLaunch::suits).
    pub fn new(spans: &[Span], drafts: Option<DecodeLaunch>) -> StepSequences {
        let lengths = |span: &Span| (span.len as u32, span.context as u32);
        let drafts = drafts.filter(|launch| launch.suits(spans.iter().map(lengths)));
        let is_decode = |span: &Span| span.len == 1 || drafts.is_some() && is_draft(span.len as u32);
        // The partition is stable: sequences of a kind keep their order.
        let (mut order, prefills): (Vec<_>, Vec<_>) = (0..spans.len()).partition(|&s| is_decode(&spans[s]));
        let decoded = order.len();
        order.extend(&prefills);
        let mut sequences = StepSequences {
            order,
            first_rows: vec![0; spans.len()],
            has_drafts: drafts.is_some(),
            decodes: 0,
            decode_rows: 0,
            prefills: prefills.len(),
            contexts: Vec::new(),
            table_starts: Vec::new(),
            query_starts: vec![0],
        };
        let mut row = 0;
        for i in 0..spans.len() {
            let s = sequences.order[i];
            sequences.first_rows[s] = row;
            let ((new, context), table) = (lengths(&spans[s]), spans[s].table as u32);
            let mut part = |new: u32, context| {
                row += new;
                sequences.contexts.push(context);
                sequences.table_starts.push(table);
                sequences.query_starts.push(row);
            };
            match drafts.filter(|_| i < decoded) {
                Some(launch) => launch.parts(new, context).for_each(|(new, context)| part(new, context)),
                None => part(new, context),
            }
            if i < decoded {
                (sequences.decodes, sequences.decode_rows) = (sequences.contexts.len(), row as usize);
            }
        }
        sequences
    }

    /// Pads to `bucket` parts and rows. Padding parts have no tokens. There must be no prefill sequences.
    pub fn pad(&mut self, bucket: usize) {
        (self.decodes, self.decode_rows) = (bucket, bucket);
        self.contexts.resize(bucket, 0);
        self.table_starts.resize(bucket, 0);
        self.query_starts.resize(bucket + 1, self.query_starts[self.query_starts.len() - 1]);
    }
}
