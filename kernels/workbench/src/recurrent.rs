//! Layers that keep a state: random sequences in paged memory, and the recurrence in `f64`.

use kernels::layout::VECTOR;
use kernels::recurrent::NO_BLOCK;
use kernels::recurrent::plan::{HeadShape, RecurrentShape, SequenceOperands};
use launch::Result;

use crate::gpu::{Buffer, Gpu};
use crate::number::{ProblemRng, Type};

/// Unused vectors between two blocks.
const GAP: u32 = 3;

/// Sequences with states, and a step's rows.
#[derive(Clone, Debug)]
pub struct RecurrentProblem {
    /// Type of activations.
    pub ty: Type,
    /// The layer.
    pub shape: RecurrentShape,
    /// Tokens in a block.
    pub block_size: u32,
    /// For each sequence its tokens before the step, and its rows. Sequences without rows are padding.
    pub sequences: Vec<[u32; 2]>,
    /// Whether states may be stored in the blocks that they are read from. A launch then changes its own input.
    pub in_place: bool,
    /// Seed of the data.
    pub seed: u64,
}

/// The block that a sequence reads, and the blocks that it stores, each with the number of rows before it.
pub type Use = (Option<u32>, Vec<(u32, u32)>);

/// A problem's memory: blocks, and which of them a sequence reads and stores.
#[derive(Clone, Debug)]
pub struct Paged {
    /// The block tables, one after the other.
    pub tables: Vec<u32>,
    /// Where each sequence's table begins.
    pub table_starts: Vec<u32>,
    /// All blocks. Blocks that a sequence reads have random states, and the others have NaN.
    pub blocks: Vec<f32>,
    /// The blocks of each sequence.
    pub uses: Vec<Use>,
}

/// A problem's sequences on a device.
#[derive(Clone, Copy, Debug)]
pub struct PlacedSequences {
    /// The arguments of launches.
    pub operands: SequenceOperands,
    /// The blocks.
    pub blocks: Buffer<f32>,
}

impl RecurrentProblem {
    /// The number of rows of all sequences.
    pub fn rows(&self) -> u32 {
        self.sequences.iter().map(|[_, len]| len).sum()
    }

    /// The rows of the longest sequence.
    pub fn longest(&self) -> u32 {
        self.sequences.iter().map(|[_, len]| *len).max().unwrap_or(0)
    }

    /// States that are read, and states that are stored.
    pub fn states(&self) -> [u64; 2] {
        let uses = self.paged().uses;
        [
            uses.iter().filter(|(read, _)| read.is_some()).count() as u64,
            uses.iter().map(|(_, to)| to.len() as u64).sum(),
        ]
    }

    /// Numbers from one block to the next.
    fn stride(&self) -> usize {
        4 * (self.shape.state_vectors() + GAP) as usize
    }

    /// Random numbers for a part of the problem.
    pub fn random(&self, part: u64) -> ProblemRng {
        ProblemRng(self.seed * 100 + part)
    }

    /// Makes states, and block tables that lack many blocks of the step.
    pub fn paged(&self) -> Paged {
        let mut random = self.random(1);
        let size = self.block_size;
        let count: u32 = self.sequences.iter().map(|[start, len]| (start + len).div_ceil(size)).sum();
        let mut free: Vec<u32> = (0..count).collect();
        random.shuffle(&mut free);
        let mut paged = Paged { tables: Vec::new(), table_starts: Vec::new(), blocks: Vec::new(), uses: Vec::new() };
        let mut is_read = vec![false; count as usize];
        for &[start, len] in &self.sequences {
            let context = start + len;
            paged.table_starts.push(paged.tables.len() as u32);
            let mut table: Vec<u32> = (0..context.div_ceil(size)).map(|_| free.pop().unwrap_or(NO_BLOCK)).collect();
            let Some(last) = table.last().copied().filter(|_| len > 0) else {
                paged.uses.push((None, Vec::new()));
                continue;
            };
            assert!(self.in_place || start.is_multiple_of(size), "a state within a block changes in place");
            let (first, end) = ((start / size) as usize, table.len() - 1);
            let source = start.checked_sub(1).map(|before| (before / size) as usize);
            for (index, block) in table.iter_mut().enumerate().take(end) {
                if Some(index) != source && (index < first || random.below(2) == 0) {
                    *block = NO_BLOCK;
                }
            }
            if let Some(source) = source.filter(|_| self.in_place && random.below(2) == 0) {
                table[source] = last;
            }
            let stored = (first..=end).filter(|&i| table[i] != NO_BLOCK && (i == end || table[i] != last));
            let ends = stored.map(|i| (table[i], ((i as u32 + 1) * size).min(context) - start)).collect();
            let source = source.map(|source| table[source]);
            source.iter().for_each(|&block| is_read[block as usize] = true);
            paged.uses.push((source, ends));
            paged.tables.extend(table);
        }
        for is_read in is_read {
            paged.blocks.extend((0..self.stride()).map(|_| if is_read { random.unit() as f32 } else { f32::NAN }));
        }
        paged
    }

    /// Uploads the sequences to a device.
    ///
    /// # Errors
    /// [`launch::Error`], if there is not enough memory.
    pub fn place(&self, paged: &Paged, gpu: &mut Gpu) -> Result<PlacedSequences> {
        let blocks = gpu.upload("states", &paged.blocks)?;
        let contexts: Vec<u32> =
            self.sequences.iter().map(|[start, len]| if *len > 0 { start + len } else { 0 }).collect();
        let mut starts = vec![0];
        self.sequences.iter().for_each(|[_, len]| starts.push(starts[starts.len() - 1] + len));
        let tables = if paged.tables.is_empty() { &[0][..] } else { &paged.tables };
        let operands = SequenceOperands {
            states: blocks.mut_ptr(),
            stride: self.stride() as u32 / 4,
            tables: gpu.upload("tables", tables)?.ptr(),
            table_starts: gpu.upload("table starts", &paged.table_starts)?.ptr(),
            query_starts: gpu.upload("query starts", &starts)?.ptr(),
            contexts: gpu.upload("contexts", &contexts)?.ptr(),
            block_size: self.block_size,
        };
        Ok(PlacedSequences { operands, blocks })
    }

    /// Computes the convolution of `x` in `f64`. Returns its results and the new blocks.
    pub fn convolved(&self, paged: &Paged, x: &[u16], kernel: &[f32], bias: Option<&[f32]>) -> (Vec<f64>, Vec<f32>) {
        let (channels, before) = (self.shape.channels as usize, self.shape.kernel as usize - 1);
        let (mut out, mut blocks) = (Vec::new(), paged.blocks.clone());
        let mut rows = x.chunks(channels);
        for (&[start, len], (source, stored)) in self.sequences.iter().zip(&paged.uses) {
            let (start, len) = (start as usize, len as usize);
            // All inputs by position. Only those just before the step are known.
            let mut inputs = vec![vec![0.0; channels]; start];
            if let Some(block) = source {
                let state = &paged.blocks[*block as usize * self.stride()..];
                for position in start.saturating_sub(before)..start {
                    inputs[position] = state[position % before * channels..][..channels].to_vec();
                }
            }
            inputs.extend(rows.by_ref().take(len).map(|row| row.iter().map(|&x| self.ty.number(x) as f32).collect()));
            for position in start..start + len {
                for c in 0..channels {
                    let mut sum = bias.map_or(0.0, |bias| f64::from(bias[c]));
                    for (tap, factors) in kernel.chunks(channels).enumerate() {
                        if let Some(at) = (position + tap).checked_sub(before) {
                            sum += f64::from(inputs[at][c]) * f64::from(factors[c]);
                        }
                    }
                    out.push(if self.shape.heads.is_some() { sum / (1.0 + (-sum).exp()) } else { sum });
                }
            }
            for &(block, end) in stored {
                let state = &mut blocks[block as usize * self.stride()..][..before * channels];
                let end = start + end as usize;
                for position in end..end + before {
                    let input =
                        position.checked_sub(before).map_or_else(|| vec![0.0; channels], |at| inputs[at].clone());
                    state[position % before * channels..][..channels].copy_from_slice(&input);
                }
            }
        }
        (out, blocks)
    }

    /// Computes the recurrence of heads in `f64`. Returns its results and the new blocks.
    pub fn recurred(&self, paged: &Paged, heads: HeadShape, data: &HeadData) -> (Vec<f64>, Vec<f64>) {
        let inner = (heads.heads * heads.value_dim) as usize;
        let mut out = vec![0.0; self.rows() as usize * inner];
        let mut blocks: Vec<f64> = paged.blocks.iter().map(|&x| x.into()).collect();
        let mut first_row = 0;
        for (&[_, len], (source, stored)) in self.sequences.iter().zip(&paged.uses) {
            for head in 0..heads.heads as usize {
                let [rows, columns] = [heads.key_dim, heads.value_dim].map(|n| n as usize);
                let mut matrix = vec![0.0; rows * columns];
                if let Some(block) = source {
                    for (at, x) in matrix.iter_mut().enumerate() {
                        *x = paged.blocks[self.place_of(heads, *block, head, at)].into();
                    }
                }
                for row in 0..len {
                    let result = data.step(heads, self, first_row + row as usize, head, &mut matrix);
                    out[(first_row + row as usize) * inner + head * columns..][..columns].copy_from_slice(&result);
                    for &(block, _) in stored.iter().filter(|(_, end)| *end == row + 1) {
                        matrix
                            .iter()
                            .enumerate()
                            .for_each(|(at, &x)| blocks[self.place_of(heads, block, head, at)] = x);
                    }
                }
            }
            first_row += len as usize;
        }
        (out, blocks)
    }

    /// Returns the place of element `at` of a head's matrix, `[key_dim][value_dim]`, in a block.
    fn place_of(&self, heads: HeadShape, block: u32, head: usize, at: usize) -> usize {
        let [rows, columns] = [heads.key_dim, heads.value_dim].map(|n| n as usize);
        let (r, c) = (at / columns, at % columns);
        let tile = head * (columns / 8) + c / 8;
        let vector = tile * 2 * rows + r % 8 * (rows / 4) + r / 8 * 2 + c % 8 / 4;
        block as usize * self.stride() + 4 * self.shape.input_vectors() as usize + 4 * vector + c % 4
    }
}

/// The inputs of heads besides their states.
#[derive(Clone, Debug)]
pub struct HeadData {
    /// `[rows][channels]`
    pub mixed: Vec<u16>,
    /// `[rows][step_stride]`
    pub steps: Vec<f32>,
    /// Numbers between rows of steps.
    pub step_stride: u32,
    /// `[heads]`
    pub decay: Vec<f32>,
    /// `[heads]`
    pub step_bias: Vec<f32>,
    /// `[heads]`, except in a delta net.
    pub skip: Option<Vec<f32>>,
}

impl HeadData {
    /// Makes random inputs. Some steps are far from zero, and some decays forget everything.
    pub fn new(problem: &RecurrentProblem, heads: HeadShape) -> HeadData {
        let mut random = problem.random(2);
        let step_stride = heads.step_columns().next_multiple_of(VECTOR) + 4;
        let rows = problem.rows();
        let mixed = random.bits(problem.ty, (rows * problem.shape.channels) as usize);
        let mut numbers = |count: u32, scale: f64, shift: f64| -> Vec<f32> {
            (0..count).map(|_| (shift + scale * random.unit()) as f32).collect()
        };
        let mut steps = numbers(rows * step_stride, 3.0, 0.0);
        steps.iter_mut().step_by(7).for_each(|step| *step *= 8.0);
        let [mut decay, step_bias, skip] =
            [(1.0, -1.1), (1.0, -1.0), (1.0, 0.0)].map(|(a, b)| numbers(heads.heads, a, b));
        // A head whose decays are all 0.
        decay.iter_mut().skip(1).take(1).for_each(|decay| *decay = f32::NEG_INFINITY);
        HeadData { mixed, steps, step_stride, decay, step_bias, skip: (!heads.is_delta).then_some(skip) }
    }

    /// Changes a head's matrix by a row, and returns the results.
    fn step(
        &self,
        heads: HeadShape,
        problem: &RecurrentProblem,
        row: usize,
        head: usize,
        matrix: &mut [f64],
    ) -> Vec<f64> {
        let HeadShape { is_delta, key_heads, heads: count, key_dim, value_dim, tiled } = heads;
        let [key_heads, count, key_dim, value_dim] = [key_heads, count, key_dim, value_dim].map(|n| n as usize);
        let at = key_dim * if tiled { head % key_heads } else { head / (count / key_heads) };
        let (keys, inner) = (key_heads * key_dim, count * value_dim);
        let [query, key, value] = if is_delta { [at, keys + at, 2 * keys] } else { [inner + keys + at, inner + at, 0] };
        let mixed = &self.mixed[row * problem.shape.channels as usize..];
        let numbers = |from: usize, len: usize| -> Vec<f64> {
            mixed[from..from + len].iter().map(|&x| problem.ty.number(x)).collect()
        };
        let unit = |x: Vec<f64>, length: f64| -> Vec<f64> {
            let factor = length / (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.into_iter().map(|x| if is_delta { x * factor } else { x }).collect()
        };
        let query = unit(numbers(query, key_dim), (key_dim as f64).powf(-0.5));
        let key = unit(numbers(key, key_dim), 1.0);
        let value = numbers(value + head * value_dim, value_dim);
        let steps = &self.steps[row * self.step_stride as usize..];
        let step = steps[if is_delta { count } else { 0 } + head] + self.step_bias[head];
        let step = f64::from(step).exp().ln_1p();
        let decay = (f64::from(self.decay[head]) * step).exp();
        let rate = if is_delta { 1.0 / (1.0 + (-f64::from(steps[head])).exp()) } else { step };
        let column = |matrix: &[f64], by: &[f64], c: usize| -> f64 {
            by.iter().zip(matrix.chunks(value_dim)).map(|(x, row)| x * row[c]).sum()
        };
        let mut result = Vec::new();
        for (c, value) in value.into_iter().enumerate() {
            let known = if is_delta { decay * column(matrix, &key, c) } else { 0.0 };
            let added = rate * (value - known);
            for (key, row) in key.iter().zip(matrix.chunks_mut(value_dim)) {
                row[c] = decay * row[c] + key * added;
            }
            let skip = self.skip.as_ref().map_or(0.0, |skip| f64::from(skip[head]));
            result.push(column(matrix, &query, c) + skip * value);
        }
        result
    }
}
