//! Attention problems: sequences whose keys and values are scattered over a paged cache, with a reference for attention
//! over them.

use kernels::attention::decode::DecodeLaunch;
use kernels::attention::{AttentionShape, UnsupportedShape, is_latent, page_head_size, value_size};
use kernels::kv_element::label;
use kernels::layout::{KeyOrValue, KvFormat, Pages};

use crate::coded::CodedHead;
use crate::number::{ProblemRng, Type, relative_error};

/// The shape of an attention problem.
#[derive(Clone, Copy, Debug)]
pub struct PagedShape {
    /// Type of queries, keys, values and results.
    pub ty: Type,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Elements per head. With a [latent](kernels::attention::LATENT_SIZES) size, keys contain the values.
    pub head_size: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// If positive, the number of positions that each position attends to, itself included. If 0, it attends to all
    /// positions before it.
    pub window: u32,
    /// How the cache stores keys and values.
    pub format: KvFormat,
}

impl PagedShape {
    /// Returns the elements of a value.
    pub fn value_size(&self) -> u32 {
        value_size(self.head_size)
    }

    /// Returns whether keys contain the values.
    pub fn is_latent(&self) -> bool {
        is_latent(self.head_size)
    }

    /// Returns the shape of a layer's pages.
    pub fn pages(&self) -> Pages {
        let head_size = page_head_size(self.head_size);
        Pages { heads: self.kv_heads, head_size, block_size: self.block_size, format: self.format, padding: 0 }
    }

    /// Returns the shape for the kernels.
    ///
    /// # Errors
    /// [`UnsupportedShape`] if there are no kernels for it.
    pub fn supported(&self) -> Result<AttentionShape, UnsupportedShape> {
        let PagedShape { heads, kv_heads, head_size, block_size, .. } = *self;
        let shape = match self.is_latent() {
            true => AttentionShape::latent(heads, head_size, self.value_size(), block_size)?,
            false => AttentionShape::new(heads, kv_heads, head_size, block_size)?,
        };
        Ok(shape.with_format(self.format))
    }

    /// Names the types of activations and cache, as in the labels of kernels.
    pub fn label(&self) -> &'static str {
        label(self.ty.element(), self.format)
    }

    /// Returns the factor on dot products.
    pub fn scale(&self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }
}

/// A sequence of `context` tokens. The last `new` tokens are queries.
#[derive(Clone, Copy, Debug)]
pub struct PagedSequence {
    /// Tokens that are queries.
    pub new: u32,
    /// Tokens in the cache, including the new ones.
    pub context: u32,
}

/// Sequences with random queries, keys and values. Blocks are allocated in random order, with unused blocks between
/// them. Slots that no sequence has written are NaN.
pub struct PagedProblem {
    /// Heads, sizes and type.
    pub shape: PagedShape,
    /// The sequences.
    pub spans: Vec<PagedSequence>,
    /// Number of blocks in the cache.
    pub blocks: u32,
    /// Each sequence's block table.
    pub tables: Vec<Vec<u32>>,
    /// `[tokens][heads][head_size]`
    pub query: Vec<u16>,
    /// `[block][offset][kv_head][head_size]`. Values that keys contain are copies of the keys.
    keys: Vec<u16>,
    values: Vec<u16>,
    /// Keys and values as the cache stores them: the same numbers, or the numbers that their codes decode to.
    cached: [Vec<f64>; 2],
    /// A logit for each query head, which joins the denominator of its softmax.
    pub sinks: Option<Vec<f32>>,
    /// The softcap of scores.
    pub softcap: Option<f32>,
    /// Unused vectors at the end of each page of codes.
    pub padding: u32,
}

impl PagedProblem {
    /// Creates sequences of these spans. They share their first `shared` blocks, as far as every sequence has full
    /// blocks before its new tokens.
    pub fn new(shape: PagedShape, spans: &[PagedSequence], shared: u32, seed: u64) -> PagedProblem {
        let mut random = ProblemRng(seed);
        let full = |s: &PagedSequence| (s.context - s.new) / shape.block_size;
        let shared = shared.min(spans.iter().map(full).min().unwrap_or(0));
        let needed: u32 = spans.iter().map(|s| s.context.div_ceil(shape.block_size) - shared).sum::<u32>() + shared;
        let blocks = needed + needed / 4 + 1;
        let mut free: Vec<u32> = (0..blocks).collect();
        random.shuffle(&mut free);
        let common = free.split_off(free.len() - shared as usize);
        let tables: Vec<Vec<u32>> = spans
            .iter()
            .map(|s| {
                let own = s.context.div_ceil(shape.block_size) - shared;
                common.iter().copied().chain(free.split_off(free.len() - own as usize)).collect()
            })
            .collect();

        let row = (shape.kv_heads * shape.head_size) as usize;
        let size = (blocks * shape.block_size) as usize * row;
        let (mut keys, mut values) = (vec![shape.ty.nan(); size], vec![shape.ty.nan(); size]);
        for (span, table) in spans.iter().zip(&tables) {
            for token in 0..span.context {
                let slot = table[(token / shape.block_size) as usize] * shape.block_size + token % shape.block_size;
                let at = slot as usize * row..(slot as usize + 1) * row;
                keys[at.clone()].copy_from_slice(&random.bits(shape.ty, row));
                values[at].copy_from_slice(&random.bits(shape.ty, row));
            }
        }
        if shape.is_latent() {
            values.clone_from(&keys);
        }
        let tokens: u32 = spans.iter().map(|s| s.new).sum();
        // Queries are large enough to make the softmax uneven.
        let query = (0..tokens * shape.heads * shape.head_size).map(|_| shape.ty.bits(4.0 * random.unit())).collect();
        let cached = [&keys, &values].map(|elements| cached(shape, elements));
        PagedProblem {
            shape,
            spans: spans.to_vec(),
            blocks,
            tables,
            query,
            keys,
            values,
            cached,
            sinks: None,
            softcap: None,
            padding: 0,
        }
    }

    /// Gives each query head a sink.
    pub fn with_sinks(self) -> PagedProblem {
        let mut random = ProblemRng(u64::from(self.shape.heads));
        let sinks = (0..self.shape.heads).map(|_| 3.0 * random.unit() as f32).collect();
        PagedProblem { sinks: Some(sinks), ..self }
    }

    /// Gives the scores a softcap.
    pub fn with_softcap(self, cap: f32) -> PagedProblem {
        PagedProblem { softcap: Some(cap), ..self }
    }

    /// Adds unused vectors to the end of each page.
    pub fn with_padding(self, padding: u32) -> PagedProblem {
        PagedProblem { padding, ..self }
    }

    /// Returns the shape for the kernels, with the problem's softcap.
    ///
    /// # Errors
    /// [`UnsupportedShape`] if there are no kernels for it.
    pub fn supported(&self) -> Result<AttentionShape, UnsupportedShape> {
        let shape = self.shape.supported()?;
        if self.softcap.is_some() { shape.with_softcap() } else { Ok(shape) }
    }

    /// Creates sequences in decode: each has one query, its last token.
    pub fn decode(shape: PagedShape, contexts: &[u32], shared: u32, seed: u64) -> PagedProblem {
        let spans: Vec<_> = contexts.iter().map(|&context| PagedSequence { new: 1, context }).collect();
        PagedProblem::new(shape, &spans, shared, seed)
    }

    /// Multiplies all values by `factor`.
    pub fn with_values_times(mut self, factor: f64) -> PagedProblem {
        let ty = self.shape.ty;
        self.values.iter_mut().for_each(|bits| *bits = ty.bits(factor * ty.number(*bits)));
        self.cached[1] = cached(self.shape, &self.values);
        self
    }

    /// Returns the elements in a row of one token's keys.
    fn row(&self) -> usize {
        (self.shape.kv_heads * self.shape.head_size) as usize
    }

    /// Returns the bytes of the cache in the layout of [`kernels::layout`], in any format.
    pub fn cache(&self) -> Vec<u8> {
        let PagedShape { ty, kv_heads, head_size, block_size, format, .. } = self.shape;
        if !format.is_coded() {
            return self.pages().into_iter().flat_map(u16::to_le_bytes).collect();
        }
        let pages = Pages { padding: self.padding, ..self.shape.pages() };
        let mut cache = vec![0; 16 * (self.blocks * pages.page_vectors()) as usize];
        for (part, elements) in [(KeyOrValue::Key, &self.keys), (KeyOrValue::Value, &self.values)] {
            for (index, head) in (0..).zip(elements.chunks_exact(head_size as usize)) {
                let (slot, number) = (index / kv_heads, index % kv_heads);
                let coded = CodedHead::of(format, &numbers(ty, head));
                coded.put(&mut cache, pages, slot / block_size, number, part, slot % block_size);
            }
        }
        cache
    }

    /// Returns the cache of a 16-bit problem in the layout of [`kernels::layout`].
    pub fn pages(&self) -> Vec<u16> {
        let pages = self.shape.pages();
        let mut cache = vec![0; (self.blocks * pages.page_vectors() * 8) as usize];
        self.place(|block, offset, head, element, key, value| {
            cache[pages.element(block, head, KeyOrValue::Key, element, offset)] = key;
            // The second half of a latent key takes the place of values.
            if !self.shape.is_latent() {
                cache[pages.element(block, head, KeyOrValue::Value, element, offset)] = value;
            }
        });
        cache
    }

    /// Returns the caches in vLLM's layouts: keys `[block][kv_head][head_size / 8][block_size][8]`, values
    /// `[block][kv_head][head_size][block_size]`.
    pub fn separate(&self) -> (Vec<u16>, Vec<u16>) {
        let PagedShape { kv_heads, head_size, block_size, .. } = self.shape;
        let (mut keys, mut values) = (vec![0; self.keys.len()], vec![0; self.values.len()]);
        self.place(|block, offset, head, element, key, value| {
            let page = (block * kv_heads + head) as usize;
            let chunk = page * (head_size / 8) as usize + (element / 8) as usize;
            keys[(chunk * block_size as usize + offset as usize) * 8 + (element % 8) as usize] = key;
            values[(page * head_size as usize + element as usize) * block_size as usize + offset as usize] = value;
        });
        (keys, values)
    }

    /// Calls `put(block, offset, head, element, key, value)` for every element of the cache.
    fn place(&self, mut put: impl FnMut(u32, u32, u32, u32, u16, u16)) {
        let PagedShape { kv_heads, head_size, block_size, .. } = self.shape;
        let mut at = 0;
        for block in 0..self.blocks {
            for offset in 0..block_size {
                for head in 0..kv_heads {
                    for element in 0..head_size {
                        put(block, offset, head, element, self.keys[at], self.values[at]);
                        at += 1;
                    }
                }
            }
        }
    }

    /// Returns the concatenated block tables, and the start of each.
    pub fn flat_tables(&self) -> (Vec<u32>, Vec<u32>) {
        let starts = self.tables.iter().scan(0, |at, table| {
            let start = *at;
            *at += table.len() as u32;
            Some(start)
        });
        (self.tables.concat(), starts.collect())
    }

    /// Returns the first new token of each sequence, and the number of all new tokens.
    pub fn query_starts(&self) -> Vec<u32> {
        let ends = self.spans.iter().scan(0, |end, span| {
            *end += span.new;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// Splits the sequences into the decode launch's [parts](DecodeLaunch::parts). Returns for each part its length,
    /// the start of its block table (from `table_starts`), and the start of its query tokens. The query starts end with
    /// the total.
    pub fn parts(&self, launch: DecodeLaunch, table_starts: &[u32]) -> [Vec<u32>; 3] {
        let [mut lengths, mut starts, mut queries] = [vec![], vec![], vec![0]];
        for (span, &start) in self.spans.iter().zip(table_starts) {
            for (tokens, length) in launch.parts(span.new, span.context) {
                lengths.push(length);
                starts.push(start);
                queries.push(queries[queries.len() - 1] + tokens);
            }
        }
        [lengths, starts, queries]
    }

    /// Returns the block tables padded to rows of the same length, and that length. The padding is not a valid block.
    pub fn padded_tables(&self) -> (Vec<u32>, u32) {
        let stride = self.tables.iter().map(Vec::len).max().unwrap_or(0);
        let pad = |table: &Vec<u32>| {
            table.iter().copied().chain(std::iter::repeat(u32::MAX)).take(stride).collect::<Vec<_>>()
        };
        (self.tables.iter().flat_map(pad).collect(), stride as u32)
    }

    /// Returns the number of cached tokens of each sequence.
    pub fn contexts(&self) -> Vec<u32> {
        self.spans.iter().map(|s| s.context).collect()
    }

    /// Returns the number of new tokens in all sequences.
    pub fn tokens(&self) -> u32 {
        self.spans.iter().map(|s| s.new).sum()
    }

    /// Computes the reference in `f64`: `[tokens][heads][value size]`.
    pub fn reference(&self) -> Vec<f64> {
        self.reference_of(0..self.tokens())
    }

    /// Computes the reference for some of the new tokens, in ascending order: `[heads][value size]` for each.
    pub fn reference_of(&self, tokens: impl IntoIterator<Item = u32>) -> Vec<f64> {
        let (mut out, mut tokens) = (Vec::new(), tokens.into_iter().peekable());
        let mut start = 0;
        for (span, table) in self.spans.iter().zip(&self.tables) {
            while let Some(token) = tokens.next_if(|&token| token < start + span.new) {
                let position = span.context - span.new + token - start;
                (0..self.shape.heads).for_each(|head| out.extend(self.attend(token, head, table, position)));
            }
            start += span.new;
        }
        out
    }

    /// Computes the reference for one head of a new token, which is at `position` of the sequence with this block
    /// table.
    fn attend(&self, token: u32, head: u32, table: &[u32], position: u32) -> Vec<f64> {
        let PagedShape { ty, heads, kv_heads, head_size, block_size, window, .. } = self.shape;
        let [keys, values] = &self.cached;
        let size = head_size as usize;
        let first = if window > 0 { (position + 1).saturating_sub(window) } else { 0 };
        let kv_head = head / (heads / kv_heads);
        let query = &self.query[(token * heads + head) as usize * size..][..size];
        let query: Vec<f64> = query.iter().map(|&q| ty.number(q)).collect();
        let at = |token: u32| {
            let slot = table[(token / block_size) as usize] * block_size + token % block_size;
            slot as usize * self.row() + (kv_head * head_size) as usize
        };
        let score = |token| -> f64 {
            let key = &keys[at(token)..at(token) + size];
            let dot: f64 = key.iter().zip(&query).map(|(k, q)| k * q).sum();
            let score = dot * f64::from(self.shape.scale());
            self.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let scores: Vec<f64> = (first..=position).map(score).collect();
        let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| sinks[head as usize].into());
        let most = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
        let mut row = vec![0.0; self.shape.value_size() as usize];
        for (token, weight) in (first..).zip(weights) {
            let end = at(token) + size;
            for (out, &value) in row.iter_mut().zip(&values[end - self.shape.value_size() as usize..end]) {
                *out += weight / sum * value;
            }
        }
        row
    }

    /// Returns the error of results, in the problem's type, relative to the largest true value of
    /// [`PagedProblem::reference`].
    pub fn error(&self, results: &[u16]) -> f64 {
        relative_error(results.iter().map(|&bits| self.shape.ty.number(bits)), &self.reference())
    }

    /// Returns the [`PagedProblem::error`] over the first and last new tokens and about 30 between them. For problems
    /// whose full reference would take too long.
    pub fn sampled_error(&self, results: &[u16]) -> f64 {
        let last = self.tokens() - 1;
        let tokens = || (0..last).step_by((last as usize).div_ceil(30).max(1)).chain([last]);
        let row = (self.shape.heads * self.shape.value_size()) as usize;
        let sampled = tokens().flat_map(|token| &results[token as usize * row..][..row]);
        relative_error(sampled.map(|&bits| self.shape.ty.number(bits)), &self.reference_of(tokens()))
    }
}

/// Converts elements to numbers.
fn numbers(ty: Type, elements: &[u16]) -> Vec<f32> {
    elements.iter().map(|&bits| ty.number(bits) as f32).collect()
}

/// Returns the elements of heads as the cache stores them.
fn cached(shape: PagedShape, elements: &[u16]) -> Vec<f64> {
    let PagedShape { ty, format, head_size, .. } = shape;
    if !format.is_coded() {
        return elements.iter().map(|&bits| ty.number(bits)).collect();
    }
    let heads = elements.chunks_exact(head_size as usize);
    heads.flat_map(|head| CodedHead::of(format, &numbers(ty, head)).numbers(format)).collect()
}
