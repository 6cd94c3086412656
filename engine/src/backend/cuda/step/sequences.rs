//! A step's sequences as attention takes them: in the order of their rows, and those with drafts cut into parts.

use kernels::attention::decode::{DecodeLaunch, is_draft};

use crate::batch::Span;

/// The sequences of a step. Decode's come first: those with one new token, and those with drafts where decode attends to them.
#[derive(Debug)]
pub struct StepSequences {
    /// Where the sequences of the rows are in the batch.
    pub order: Vec<usize>,
    /// The first row of each sequence of the batch.
    pub first_rows: Vec<u32>,
    /// Whether decode attends to sequences with several new tokens.
    pub has_drafts: bool,
    /// How many parts decode attends to.
    pub decodes: usize,
    /// The rows of these, which come first.
    pub decode_rows: usize,
    /// The sequences behind these.
    pub prefills: usize,
    /// Tokens in the cache that each part sees, decode's parts first; 0 for padding.
    pub contexts: Vec<u32>,
    /// Where the block table of each part begins.
    pub table_starts: Vec<u32>,
    /// The first row of each part, and the end.
    pub query_starts: Vec<u32>,
}

impl StepSequences {
    /// The sequences of a batch. `drafts` attends to those with drafts where that [suits](DecodeLaunch::suits).
    pub fn of(spans: &[Span], drafts: Option<DecodeLaunch>) -> StepSequences {
        let lengths = |span: &Span| (span.len as u32, span.context as u32);
        let drafts = drafts.filter(|launch| launch.suits(spans.iter().map(lengths)));
        let is_decode = |span: &Span| span.len == 1 || drafts.is_some() && is_draft(span.len as u32);
        // Stable: sequences of a kind keep their order.
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

    /// Makes it so many parts and rows, of which those that are new have no tokens. There are none for prefill.
    pub fn pad(&mut self, bucket: usize) {
        (self.decodes, self.decode_rows) = (bucket, bucket);
        self.contexts.resize(bucket, 0);
        self.table_starts.resize(bucket, 0);
        self.query_starts.resize(bucket + 1, self.query_starts[self.query_starts.len() - 1]);
    }
}
