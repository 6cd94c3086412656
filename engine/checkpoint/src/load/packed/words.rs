//! 4-bit integers in 32-bit words.

use std::ops::Range;

/// Integers per word.
pub(super) const IN_WORD: usize = 8;
/// The position in a word of each of eight outputs, in AutoAWQ's packing.
const AWQ_POSITIONS: [usize; IN_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The layout of packed integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// `[inputs, outputs / 8]`: a word has eight outputs of one input, in AutoAWQ's order.
    Awq,
    /// `[inputs, outputs / 8]`: a word has eight outputs of one input.
    Outputs,
    /// `[inputs / 8, outputs]`: a word has eight inputs of one output.
    Inputs,
    /// `[outputs, inputs / 8]`: a word has eight inputs of one output.
    InputsOfRows,
    /// `[outputs / 8, inputs]`: a word has eight outputs of one input.
    OutputsOfRows,
}

/// A matrix of packed integers.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    /// The words in the order of the file.
    pub bytes: &'a [u8],
    pub packing: Packing,
    /// Number of outputs and of inputs.
    pub rows: usize,
    pub cols: usize,
}

impl Packing {
    /// Returns the shape of a matrix's words.
    pub fn shape(self, rows: usize, cols: usize) -> [usize; 2] {
        match self {
            Packing::Awq | Packing::Outputs => [cols, rows.div_ceil(IN_WORD)],
            Packing::Inputs => [cols.div_ceil(IN_WORD), rows],
            Packing::InputsOfRows => [rows, cols.div_ceil(IN_WORD)],
            Packing::OutputsOfRows => [rows.div_ceil(IN_WORD), cols],
        }
    }
}

impl Words<'_> {
    fn word(&self, at: usize) -> u32 {
        let bytes = &self.bytes[4 * at..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Unpacks the integers of some rows, row by row. It reads the words in order, or nearly so.
    pub fn unpack(&self, rows: Range<usize>, to: &mut [u8]) {
        let (cols, [_, words]) = (self.cols, self.packing.shape(self.rows, self.cols));
        let nibble = |word: u32, position: usize| (word >> (4 * position) & 15) as u8;
        match self.packing {
            Packing::Awq | Packing::Outputs | Packing::OutputsOfRows => {
                for col in 0..cols {
                    for eight in rows.start / IN_WORD..rows.end.div_ceil(IN_WORD) {
                        let at = if self.packing == Packing::OutputsOfRows {
                            eight * cols + col
                        } else {
                            col * words + eight
                        };
                        let word = self.word(at);
                        let first = eight * IN_WORD;
                        for row in first.max(rows.start)..(first + IN_WORD).min(rows.end) {
                            let position = row - first;
                            let position =
                                if self.packing == Packing::Awq { AWQ_POSITIONS[position] } else { position };
                            to[(row - rows.start) * cols + col] = nibble(word, position);
                        }
                    }
                }
            }
            Packing::Inputs | Packing::InputsOfRows => {
                for eight in 0..cols.div_ceil(IN_WORD) {
                    for row in rows.clone() {
                        let at =
                            if self.packing == Packing::Inputs { eight * self.rows + row } else { row * words + eight };
                        let word = self.word(at);
                        let to = &mut to[(row - rows.start) * cols + eight * IN_WORD..(row - rows.start + 1) * cols];
                        to.iter_mut().take(IN_WORD).enumerate().for_each(|(position, to)| *to = nibble(word, position));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packing_matches_its_format() {
        let (rows, cols) = (24, 16);
        let quant = |row: usize, col: usize| ((row * 7 + col * 5 + row * col) % 16) as u32;
        for packing in [Packing::Awq, Packing::Outputs, Packing::Inputs, Packing::InputsOfRows, Packing::OutputsOfRows]
        {
            let [first, second] = packing.shape(rows, cols);
            let mut words = vec![0u32; first * second];
            for row in 0..rows {
                for col in 0..cols {
                    let (at, position) = match packing {
                        // AutoAWQ's packer puts output `order[position]` of eight at each position.
                        Packing::Awq => {
                            let order = [0, 2, 4, 6, 1, 3, 5, 7];
                            (col * second + row / 8, order.iter().position(|&of| of == row % 8).unwrap())
                        }
                        Packing::Outputs => (col * second + row / 8, row % 8),
                        Packing::Inputs => (col / 8 * second + row, col % 8),
                        Packing::InputsOfRows => (row * second + col / 8, col % 8),
                        Packing::OutputsOfRows => (row / 8 * second + col, row % 8),
                    };
                    words[at] |= quant(row, col) << (4 * position);
                }
            }
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let words = Words { bytes: &bytes, packing, rows, cols };
            for range in [0..rows, 8..16, 3..21] {
                let mut got = vec![99; range.len() * cols];
                words.unpack(range.clone(), &mut got);
                let want: Vec<u8> = range.flat_map(|row| (0..cols).map(move |col| quant(row, col) as u8)).collect();
                assert_eq!(got, want, "{packing:?}");
            }
        }
    }
}
