//! The states of one layer in paged memory.

use crate::attention::Span;

/// The entry of a block table without a block.
pub const NO_BLOCK: u32 = u32::MAX;

/// The states of one layer, and the sequences of a step. Block `i` of a sequence's table has the state after the tokens
/// of that block.
pub struct States<'a> {
    /// The layer's blocks. A block begins with the state.
    pub blocks: &'a mut [f32],
    /// Elements from one block to the next.
    pub stride: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The sequences, in the order of their tokens.
    pub spans: &'a [Span],
    /// Block tables of all sequences, concatenated. A table may lack blocks, but has the last one. The block with the state
    /// before the step may be the last one too.
    pub tables: &'a [u32],
}

/// The states of one sequence that a step writes.
pub(super) struct SpanStates<'a> {
    pub span: Span,
    /// The number of the span's tokens that precede each state, and the state. The first one is the sequence's state before
    /// the step.
    pub stops: Vec<(usize, &'a mut [f32])>,
}

impl<'a> States<'a> {
    /// Returns each sequence's states of `len` elements that the step writes. Copies its state before the step to the first
    /// of them.
    ///
    /// # Panics
    /// If two sequences write the same block, or a block that the step needs is absent.
    pub(super) fn claim(self, len: usize) -> Vec<SpanStates<'a>> {
        let States { blocks, stride, block_size, spans, tables } = self;
        let mut claims = Vec::new();
        for (sequence, span) in spans.iter().enumerate().filter(|(_, span)| span.len > 0) {
            let start = span.context - span.len;
            let block = |index: usize| tables[span.table + index];
            let (first, last) = (claims.len(), (span.context - 1) / block_size);
            for index in start / block_size..=last {
                let end = ((index + 1) * block_size).min(span.context) - start;
                if block(index) != NO_BLOCK && (index == last || block(index) != block(last)) {
                    claims.push((block(index) as usize * stride, sequence, end));
                }
            }
            let to = claims[first..].first().map(|claim| claim.0).unwrap_or_else(|| panic!("a step stores no state"));
            match start.checked_sub(1).map(|last| block(last / block_size) as usize * stride) {
                None => blocks[to..to + len].fill(0.0),
                Some(from) if from != to => blocks.copy_within(from..from + len, to),
                Some(_) => {}
            }
        }
        let mut sequences: Vec<SpanStates<'_>> =
            spans.iter().map(|span| SpanStates { span: *span, stops: Vec::new() }).collect();
        claims.sort_unstable();
        let (mut rest, mut at) = (blocks, 0);
        for (begin, sequence, end) in claims {
            let (state, after) = rest.split_at_mut(begin - at).1.split_at_mut(len);
            (rest, at) = (after, begin + len);
            sequences[sequence].stops.push((end, state));
        }
        sequences.iter_mut().for_each(|sequence| sequence.stops.sort_unstable_by_key(|stop| stop.0));
        sequences
    }
}
