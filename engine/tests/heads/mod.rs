//! A stand-in for a model whose heads are divided among workers. It has no arithmetic of a model, but the same
//! exchanges between workers.
//!
//! In each layer every head stores a value for a token. The value depends on what all heads of the earlier layers have
//! read. A worker's cache has only its own heads. So if one worker loses a block, moves it wrongly or reads it too
//! early, all later results change. What the heads read is summed as integers, which floats represent exactly. So the
//! sums do not depend on how the heads are divided.

use std::cell::Cell;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;

use engine::tools::adapter::Sites;
use engine::tools::backend::{
    Activation, Attention, Backend, Change, HostExpert, HostExperts, HostLinear, HostQkv, HostRecurrent, Latent, Norm,
    QkNormRope,
};
use engine::tools::batch::{Batch, Span};
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::{KvLayout, NO_BLOCK};
use engine::tools::model::Model;
use engine::tools::parallel::{ParallelRunner, RankGroup, Shard, WorkerRank};
use engine::tools::runner::{ModelRunner, Runner};
use engine::tools::sampling::{SampleRow, Sampled, sample_row};
use engine::tools::tensor::HostTensor;
use engine::{Error, Result};

use crate::oracle::{Memory, VOCAB, first_seen, is_stored};

/// Heads of all workers together.
const HEADS: usize = 4;
const LAYERS: usize = 3;
/// Floats that represent a 64-bit number, 16 bits each. Sums over all heads are exact.
const PIECES: usize = 4;

/// The point where a worker fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The worker panics before anything is computed.
    Moves,
    /// The worker panics between two exchanges with the other workers.
    Layer,
    /// The first worker reports an error instead of sampling. Other workers fail as at [`Point::Layer`].
    Sample,
}

/// A failure of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The worker's index, modulo the number of workers.
    pub worker: usize,
    /// The number of steps that it computes before it fails.
    pub steps: usize,
    /// The point where it fails.
    pub point: Point,
}

/// The device of a worker. It supports only the stand-in model.
pub struct HeadBackend {
    rank: WorkerRank,
    config: EngineConfig,
    failure: Option<Failure>,
    /// The number of steps begun.
    steps: Cell<usize>,
    /// Held by every worker, so that tests can see whether any is left.
    _alive: Arc<()>,
}

/// An engine of `of` workers. With `failure`, a worker fails. Each worker holds a clone of `alive`.
pub fn engine(config: EngineConfig, of: usize, failure: Option<Failure>, alive: &Arc<()>) -> Engine {
    let group = RankGroup::new(of);
    let worker = |rank: usize| {
        let own = failure.filter(|failure| failure.worker % of == rank);
        let backend = HeadBackend {
            rank: group.rank(rank),
            config: config.clone(),
            failure: own,
            steps: Cell::new(0),
            _alive: Arc::clone(alive),
        };
        let heads = backend.heads().len();
        assert_eq!(heads * of, HEADS);
        let cache = (0..LAYERS * heads).map(|_| Memory::new(&config)).collect();
        ModelRunner::new(backend, Box::new(Heads), cache)
    };
    let mut workers: Vec<_> = (0..of).map(worker).collect();
    let first = workers.remove(0);
    let runner: Box<dyn Runner> = match of {
        1 => Box::new(first),
        _ => Box::new(ParallelRunner::new(first, workers, group).unwrap()),
    };
    Engine::new(config, runner)
}

impl HeadBackend {
    /// The heads of this worker.
    fn heads(&self) -> Range<usize> {
        self.rank.shard().heads(HEADS)
    }

    /// The group of a layer. Layers take turns.
    fn group(&self, layer: usize) -> usize {
        layer % self.config.groups.len()
    }

    fn block(&self, batch: &Batch, group: usize, span: &Span, position: usize) -> u32 {
        batch.groups[group].blocks[span.table + position / self.config.block_size]
    }

    fn slot(&self, batch: &Batch, group: usize, span: &Span, position: usize) -> usize {
        let block = self.block(batch, group, span, position) as usize;
        block * self.config.block_size + position % self.config.block_size
    }

    /// The state before the first new token of a sequence.
    fn state_before(&self, memory: &Memory, batch: &Batch, group: usize, span: &Span) -> u64 {
        let last = (span.context - span.len).checked_sub(1);
        let state = |p| memory.state(group, self.block(batch, group, span, p)).expect("read of an unwritten state");
        last.map_or(0x9E37_79B9_7F4A_7C15, state)
    }

    fn fails(&self, at: Point) -> bool {
        self.failure.is_some_and(|failure| {
            let is_first = self.rank.shard().is_first();
            let point = if is_first || failure.point != Point::Sample { failure.point } else { Point::Layer };
            point == at && self.steps.get() > failure.steps
        })
    }

    /// Panics if the worker is to fail here, without output on standard error.
    fn pass(&self, at: Point) {
        if self.fails(at) {
            resume_unwind(Box::new("the intended failure of a worker"));
        }
    }

    /// A hash of everything that a head attends to at position `p` of a sequence.
    fn read(&self, memory: &Memory, batch: &Batch, group: usize, span: &Span, p: usize) -> u64 {
        let seen = first_seen(p, self.config.groups[group].window)..=p;
        seen.fold(0x9E37_79B9_7F4A_7C15, |read, p| {
            mix(read, memory.get(group, self.slot(batch, group, span, p)).expect("read of an unwritten slot"))
        })
    }
}

/// The stand-in model, which has no weights.
struct Heads;

impl Model<HeadBackend> for Heads {
    fn sites(&self) -> &Arc<Sites> {
        unreachable!("the workers have no adapters")
    }

    fn forward(&self, backend: &HeadBackend, cache: &mut Vec<Memory>, batch: &Batch) -> Vec<f32> {
        let mut hidden: Vec<u64> = batch.tokens.iter().map(|&token| u64::from(token)).collect();
        let own = backend.heads();
        for (layer, caches) in cache.chunks_mut(own.len()).enumerate() {
            let group = backend.group(layer);
            let mut sums = vec![0.0; hidden.len() * PIECES];
            for (head, memory) in own.clone().zip(caches) {
                let salt = (layer * HEADS + head + 1) as u64;
                for span in &batch.spans {
                    let rows = || (span.start..).zip(span.context - span.len..span.context);
                    if backend.config.groups[group].is_state() {
                        let mut state = backend.state_before(memory, batch, group, span);
                        for (row, p) in rows() {
                            state = mix(state, mix(salt, hidden[row]));
                            let block = backend.block(batch, group, span, p);
                            if is_stored(p, span, backend.config.block_size) && block != NO_BLOCK {
                                memory.set_state(group, block, state);
                            }
                            sums[row * PIECES..].iter_mut().zip(pieces(state)).for_each(|(sum, piece)| *sum += piece);
                        }
                        continue;
                    }
                    for (row, p) in rows() {
                        let slot = backend.slot(batch, group, span, p);
                        assert_eq!((batch.positions[row] as usize, batch.groups[group].slots[row] as usize), (p, slot));
                        memory.set(group, slot, mix(salt, hidden[row]));
                    }
                    for (row, p) in rows() {
                        let read = pieces(backend.read(memory, batch, group, span, p));
                        sums[row * PIECES..].iter_mut().zip(read).for_each(|(sum, piece)| *sum += piece);
                    }
                }
            }
            backend.all_reduce(&mut sums, None);
            for (hidden, sums) in hidden.iter_mut().zip(sums.chunks(PIECES)) {
                *hidden = sums.iter().fold(*hidden, |hidden, &sum| mix(hidden, sum as u64));
            }
            backend.pass(Point::Layer);
        }
        hidden.into_iter().flat_map(pieces).collect()
    }

    fn final_hidden(&self, _: &HeadBackend, rows: Vec<f32>) -> Vec<f32> {
        rows
    }

    fn logits(&self, backend: &HeadBackend, hidden: Vec<f32>) -> Vec<f32> {
        let own = backend.rank.shard().rows(VOCAB as usize);
        let logit = |hidden: &[f32], token: usize| {
            let hash = hidden.iter().fold(token as u64, |hash, &piece| mix(hash, piece as u64));
            (hash % 10_000) as f32 / 2_500.0
        };
        hidden.chunks(PIECES).flat_map(|hidden| own.clone().map(move |token| logit(hidden, token))).collect()
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a.rotate_left(23) ^ b).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 29)
}

fn pieces(number: u64) -> [f32; PIECES] {
    std::array::from_fn(|i| f32::from((number >> (16 * i)) as u16))
}

impl Backend for HeadBackend {
    type Tensor = Vec<f32>;
    type Weight = ();
    /// The memory of each of this worker's heads, layer by layer.
    type KvCache = Vec<Memory>;
    type QkvWeight = ();
    type GatedWeight = ();
    type ExpertsWeight = ();
    type LatentWeight = ();
    type RecurrentWeight = ();
    type Qkv = ();
    type Adapter = ();
    type Inputs = Batch;

    fn upload(&self, batch: Batch, _: &[SampleRow<'_>]) -> Batch {
        self.steps.set(self.steps.get() + 1);
        batch
    }

    fn move_blocks(&self, cache: &mut Vec<Memory>, batch: &Batch) {
        self.pass(Point::Moves);
        cache.iter_mut().for_each(|memory| memory.move_blocks(&batch.moves));
    }

    fn shard(&self) -> Shard {
        self.rank.shard()
    }

    fn all_reduce(&self, x: &mut Vec<f32>, part: Option<Vec<f32>>) {
        assert!(part.is_none(), "the stand-in model has no residual stream");
        self.rank.sum(x);
    }

    fn logit_rows(&self, x: &Vec<f32>, batch: &Batch) -> Vec<f32> {
        batch.logit_rows.iter().flat_map(|&row| x[row as usize * PIECES..][..PIECES].to_vec()).collect()
    }

    fn hidden_rows(&self, x: &Vec<f32>, batch: &Batch) -> Vec<f32> {
        batch.hidden_rows.iter().flat_map(|&row| x[row as usize * PIECES..][..PIECES].to_vec()).collect()
    }

    fn download(&self, x: &Vec<f32>) -> Result<Vec<f32>> {
        if self.fails(Point::Sample) {
            return Err(Error::Device("lost".into()));
        }
        Ok(x.clone())
    }

    fn gather_logits(&self, part: Vec<f32>) -> Vec<f32> {
        let rows = part.len() / self.rank.shard().rows(VOCAB as usize).len();
        self.rank.gather(rows, &part, |cols| vec![0.0; rows * cols]).unwrap_or(part)
    }

    fn sample(&self, logits: &Vec<f32>, _: &Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        if self.fails(Point::Sample) {
            return Err(Error::Device("lost".into()));
        }
        let logits = logits.chunks(VOCAB as usize);
        rows.iter().zip(logits).map(|(row, logits)| sample_row(logits, row, &mut Vec::new())).collect()
    }

    // The stand-in model does not use the following methods.

    fn weight(&self, _: HostTensor) -> Result<()> {
        unreachable!()
    }
    fn qkv_weight(&self, _: HostQkv) -> Result<()> {
        unreachable!()
    }
    fn gated_weight(&self, _: [HostLinear; 2]) -> Result<()> {
        unreachable!()
    }
    fn experts_weight(&self, _: HostExperts, _: &mut dyn Iterator<Item = Result<HostExpert>>) -> Result<()> {
        unreachable!()
    }
    fn latent_weight(&self, _: Latent, _: Vec<HostTensor>, _: Vec<HostTensor>) -> Result<()> {
        unreachable!()
    }
    fn latent_qkv(&self, _: [&Vec<f32>; 2], _: [&Vec<f32>; 2], _: &()) {
        unreachable!()
    }
    fn latent_values(&self, _: &Vec<f32>, _: &()) -> Vec<f32> {
        unreachable!()
    }
    fn recurrent_weight(&self, _: HostRecurrent) -> Result<()> {
        unreachable!()
    }
    fn recurrent(
        &self,
        _: &Vec<f32>,
        _: Option<[&Vec<f32>; 2]>,
        _: &(),
        _: (&mut Vec<Memory>, usize),
        _: &Batch,
    ) -> Vec<f32> {
        unreachable!()
    }
    fn kv_cache(&self, _: KvLayout, _: usize, _: usize) -> Result<Vec<Memory>> {
        unreachable!()
    }
    fn embed_tokens(&self, _: &(), _: Range<usize>, _: Option<(&(), usize)>, _: &Batch) -> Vec<f32> {
        unreachable!()
    }
    fn add_positions(&self, _: &mut Vec<f32>, _: &(), _: usize, _: &Batch) {
        unreachable!()
    }
    fn linear(&self, _: &Vec<f32>, _: &(), _: Option<&()>, _: Option<Activation>) -> Vec<f32> {
        unreachable!()
    }
    fn linear_add(&self, _: &mut Vec<f32>, _: &Vec<f32>, _: &(), _: Option<&()>) {
        unreachable!()
    }
    fn gated(&self, _: &Vec<f32>, _: &(), _: Activation) -> Vec<f32> {
        unreachable!()
    }
    fn experts(&self, _: &Vec<f32>, _: &Vec<f32>, _: &(), _: &Batch) -> Vec<f32> {
        unreachable!()
    }
    fn qkv(&self, _: &Vec<f32>, _: &()) {
        unreachable!()
    }
    fn change(&self, _: &mut Vec<f32>, _: Change<'_, Vec<f32>>) {
        unreachable!()
    }
    fn norm(&self, _: &Vec<f32>, _: &Norm<()>) -> Vec<f32> {
        unreachable!()
    }
    fn norm_rope_and_write_kv(&self, _: &mut (), _: QkNormRope<'_, ()>, _: &mut Vec<Memory>, _: usize, _: &Batch) {
        unreachable!()
    }
    fn attention(&self, _: &(), _: &Vec<Memory>, _: Attention<'_, ()>, _: &Batch) -> Vec<f32> {
        unreachable!()
    }
    fn logits(&self, _: &Vec<f32>, _: &()) -> Vec<f32> {
        unreachable!()
    }
}
