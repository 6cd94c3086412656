//! Compares attention with the same sums in f64, for layers that differ in their heads and windows, and with sinks and
//! softcaps. The rows of queries, keys and values are rows of a table, which the step's tokens select.

use half::f16;

use super::*;
use crate::backend::{Attention, QkNormRope};
use crate::config::{DecoderLayer, ModelFamily};
use crate::kv::KvGroup;
use crate::tensor::HostTensor;

const BLOCK: usize = 16;
const SCALE: f32 = 0.3;
/// Rows of the tables.
const TOKENS: usize = 600;
/// Tokens of each sequence in the end.
const LENGTHS: [usize; 3] = [37, 120, 21];

/// A sequence, its first new token, and one past the last.
type Part = (usize, usize, usize);

/// A layer's query heads, key/value heads, head size, window, and the layer whose cache it reads.
type Layer = (usize, usize, usize, Option<usize>, usize);

/// Layers, and the settings that they share.
struct Case {
    layers: Vec<Layer>,
    softcap: Option<f32>,
    has_sinks: bool,
    options: Options,
}

impl Case {
    fn new(layers: &[Layer]) -> Self {
        let options = Options { cuda_graphs: false, ..Options::default() };
        Case { layers: layers.to_vec(), softcap: None, has_sinks: false, options }
    }

    /// A configuration with these layers. Only its heads matter to attention.
    fn config(&self) -> ModelConfig {
        let mut config = open("llama3").1;
        let ModelFamily::Decoder(decoder) = &mut config.family else { panic!("LLaMA is a decoder") };
        let first = decoder.layers[0].clone();
        let layer = |(source, &(heads, kv_heads, head_dim, window, _)): (usize, &Layer)| DecoderLayer {
            heads,
            kv_heads,
            head_dim,
            window,
            source,
            rope: None,
            ..first.clone()
        };
        decoder.layers = self.layers.iter().enumerate().map(layer).collect();
        (decoder.softcap, config.layers) = (self.softcap, self.layers.len());
        config
    }

    fn layout(&self) -> KvLayout {
        let mut layers = self.config().kv_layers();
        for (layer, &(.., source)) in layers.iter_mut().zip(&self.layers) {
            layer.source = source;
        }
        KvLayout::new(&layers, BLOCK, kv(&self.options))
    }

    fn sinks(&self, layer: usize) -> Option<Vec<f32>> {
        self.has_sinks.then(|| noise(900 + layer as u64, self.layers[layer].0).iter().map(|x| 3.0 * x).collect())
    }

    /// Row `token` of layer `layer`'s table: queries, keys and values.
    fn row(&self, layer: usize, token: usize) -> Vec<f32> {
        let (heads, kv_heads, head_dim, ..) = self.layers[layer];
        let row = noise((layer * 1000 + token) as u64, (heads + 2 * kv_heads) * head_dim);
        row.into_iter().map(|x| f16::from_f32(2.0 * x).to_f32()).collect()
    }
}

/// The table's row for a token.
fn token(sequence: usize, position: usize) -> usize {
    200 * sequence + position
}

/// Returns `n` reproducible numbers in `[-1, 1)`.
fn noise(mut seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|_| splitmix::unit(&mut seed) as f32).collect()
}

/// Block tables of all sequences in each group. The groups' pages alternate, and most are out of order.
fn tables(layout: &KvLayout) -> (Vec<Vec<Vec<u32>>>, usize) {
    let mut pages = 0;
    let groups = layout.cache_groups();
    let mut tables = vec![vec![Vec::new(); LENGTHS.len()]; groups.len()];
    for (sequence, &len) in LENGTHS.iter().enumerate() {
        for (group, shape) in groups.iter().enumerate() {
            let (blocks, per_page) = (len.div_ceil(BLOCK), shape.blocks_per_page);
            // Every second block of the pages stays free.
            let taken = (2 * blocks).div_ceil(per_page);
            let ids = (pages * per_page..(pages + taken) * per_page).rev().step_by(2).take(blocks);
            tables[group][sequence] = ids.map(|id| (id * shape.id_step) as u32).collect();
            pages += taken;
        }
    }
    (tables, pages)
}

/// A backend with the tables and sinks of all layers.
struct Bench<'a> {
    case: &'a Case,
    backend: CudaBackend,
    /// For each layer, the rows of its table.
    values: Vec<Vec<Vec<f32>>>,
    rows: Vec<CudaWeight>,
    sinks: Vec<Option<CudaWeight>>,
    tables: Vec<Vec<Vec<u32>>>,
}

impl<'a> Bench<'a> {
    fn new(case: &'a Case) -> Self {
        let types = (DType::F16, kv(&case.options));
        let driver = Driver::emulator().unwrap();
        let backend = CudaBackend::new(driver, 0, &case.config(), Shard::WHOLE, &case.options, types, false).unwrap();
        let values: Vec<Vec<Vec<f32>>> =
            (0..case.layers.len()).map(|layer| (0..TOKENS).map(|token| case.row(layer, token)).collect()).collect();
        let table = |rows: &Vec<Vec<f32>>| {
            let table = HostTensor::from_f32(vec![TOKENS, rows[0].len()], rows.concat());
            backend.weight(table.to_dtype(DType::F16)).unwrap()
        };
        let sinks = |layer: usize| {
            let sinks = case.sinks(layer)?;
            Some(backend.weight(HostTensor::from_f32(vec![sinks.len()], sinks)).unwrap())
        };
        let (rows, sinks) = (values.iter().map(table).collect(), (0..case.layers.len()).map(sinks).collect());
        Bench { case, backend, values, rows, sinks, tables: tables(&case.layout()).0 }
    }

    /// Allocates memory for these steps, and a cache full of NaN.
    fn ready(&self, steps: &[&[Part]]) -> CudaKvCache {
        steps.iter().for_each(|step| assert!(!self.rehearse(step).is_empty()));
        self.backend.provide_activations().unwrap();
        let layout = self.case.layout();
        let pages = tables(&layout).1;
        let cache = self.backend.kv_cache(layout, pages, 0).unwrap();
        let (device, memory) = (self.backend.queue.device().unwrap(), cache.memory().unwrap());
        device.stream.upload(&vec![0xff; memory.len()], memory).unwrap();
        cache
    }

    fn rehearse(&self, step: &[Part]) -> Vec<NotedLaunch> {
        let mut cache = self.backend.rehearsed_cache(&self.case.layout());
        self.backend.rehearse(|| drop(self.run(&mut cache, step))).unwrap()
    }

    /// A step without the numbers of blocks that no window sees.
    fn batch(&self, parts: &[Part]) -> Batch {
        let layout = self.case.layout();
        let mut batch = Batch::new(layout.groups.len());
        for &(sequence, from, to) in parts {
            batch.spans.push(Span { start: batch.tokens.len(), len: to - from, context: to, table: batch.table_len() });
            batch.tokens.extend((from..to).map(|p| token(sequence, p) as u32));
            batch.positions.extend(from as u32..to as u32);
            for (group, (to_group, tables)) in batch.groups.iter_mut().zip(&self.tables).enumerate() {
                let KvGroup { window, .. } = layout.groups[group];
                let table = &tables[sequence];
                let slot = |p: usize| table[p / BLOCK] * BLOCK as u32 + (p % BLOCK) as u32;
                to_group.slots.extend((from..to).map(slot));
                let first = window.map_or(0, |w| (from + 1).saturating_sub(w)) / BLOCK;
                let entry = |i: usize| if i < first { u32::MAX - 7 } else { table[i] };
                to_group.blocks.extend((0..to.div_ceil(BLOCK)).map(entry));
            }
        }
        batch
    }

    /// Computes a step in all layers and returns their results.
    fn run(&self, cache: &mut CudaKvCache, parts: &[Part]) -> Vec<CudaTensor> {
        let inputs = self.backend.upload(self.batch(parts), &[]);
        let mut results = Vec::new();
        for (layer, &(.., window, source)) in self.case.layers.iter().enumerate() {
            let mut qkv = self.backend.embed_tokens(&self.rows[layer], 0..TOKENS, None, &inputs);
            if source == layer {
                let heads = QkNormRope::default();
                Backend::norm_rope_and_write_kv(&self.backend, &mut qkv, heads, cache, layer, &inputs);
            }
            let (softcap, sinks) = (self.case.softcap, self.sinks[layer].as_ref());
            let params = Attention { layer, scale: SCALE, window, softcap, sinks };
            results.push(Backend::attention(&self.backend, &qkv, cache, params, &inputs));
        }
        results
    }

    /// The attention of a token in f64.
    fn reference(&self, layer: usize, sequence: usize, position: usize) -> Vec<f64> {
        let (heads, kv_heads, dim, window, source) = self.case.layers[layer];
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let queries = &self.values[layer][token(sequence, position)];
        let seen: Vec<_> = (first..=position).map(|p| &self.values[source][token(sequence, p)]).collect();
        let (source_heads, sinks) = (self.case.layers[source].0, self.case.sinks(layer));
        let mut out = Vec::new();
        for (head, query) in queries.chunks(dim).take(heads).enumerate() {
            let own = source_heads + head / (heads / kv_heads);
            let [key, value] = [own, own + kv_heads].map(|at| at * dim..(at + 1) * dim);
            let weight = |row: &&Vec<f32>| {
                let dot: f64 = query.iter().zip(&row[key.clone()]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let score = dot * f64::from(SCALE);
                self.case.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh()).exp()
            };
            let weights: Vec<f64> = seen.iter().map(weight).collect();
            let sink = sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let norm = weights.iter().sum::<f64>() + sink;
            let sum = |i: usize| weights.iter().zip(&seen).map(|(weight, row)| weight * f64::from(row[i])).sum::<f64>();
            out.extend(value.map(|i| sum(i) / norm));
        }
        out
    }

    /// Runs a step and compares all rows. Sequences with several new tokens must follow the others unless they have
    /// drafts.
    fn assert_step(&self, cache: &mut CudaKvCache, parts: &[Part], tolerance: f64) {
        let results = self.run(cache, parts);
        for (layer, out) in results.iter().enumerate() {
            let out = self.backend.download(out).unwrap();
            let (heads, _, head_dim, ..) = self.case.layers[layer];
            let positions = parts.iter().flat_map(|&(sequence, from, to)| (from..to).map(move |p| (sequence, p)));
            let rows: Vec<_> = positions.collect();
            assert_eq!(out.len(), rows.len() * heads * head_dim);
            for (&(sequence, position), got) in rows.iter().zip(out.chunks(heads * head_dim)) {
                let want = self.reference(layer, sequence, position);
                for (got, want) in got.iter().zip(want) {
                    let close = (f64::from(*got) - want).abs() <= tolerance;
                    assert!(close, "layer {layer}, sequence {sequence}, position {position}: {got}, not {want}");
                }
            }
        }
    }
}

/// Runs chunks of prompts, decode steps, and drafts.
fn assert_case(case: &Case, tolerance: f64) {
    let steps: [&[Part]; 6] = [
        &[(0, 0, 20), (1, 0, 70)],
        &[(0, 20, 21), (1, 70, 115), (2, 0, 17)],
        &[(0, 21, 22), (1, 115, 116), (2, 17, 18)],
        &[(0, 22, 24), (1, 116, 119), (2, 18, 20)],
        &[(1, 119, 120), (2, 20, 21)],
        &[(0, 24, 37)],
    ];
    let bench = Bench::new(case);
    let mut cache = bench.ready(&steps);
    for step in steps {
        bench.assert_step(&mut cache, step, tolerance);
    }
}

/// Gemma 4's pattern: window layers with more key/value heads, and wide heads that see everything.
const WIDE: [Layer; 4] = [(4, 2, 32, Some(20), 0), (4, 1, 64, None, 1), (4, 2, 32, Some(20), 2), (4, 1, 64, None, 3)];

/// Three layers with equal heads. The first and the last have a window.
fn alternating(heads: usize, kv_heads: usize, head_dim: usize) -> [Layer; 3] {
    [0, 1, 2].map(|i| (heads, kv_heads, head_dim, (i != 1).then_some(20), i))
}

#[test]
fn layers_with_different_heads_and_windows() {
    assert_case(&Case::new(&WIDE), 3e-3);
}

#[test]
fn layers_that_read_the_caches_of_others() {
    let mut layers = WIDE.to_vec();
    (layers[2].4, layers[3].4) = (0, 1);
    assert_case(&Case::new(&layers), 3e-3);
}

#[test]
fn sinks_take_part_in_every_softmax() {
    for (heads, kv_heads, head_dim) in [(8, 1, 64), (2, 2, 80)] {
        let layers = alternating(heads, kv_heads, head_dim);
        assert_case(&Case { has_sinks: true, ..Case::new(&layers) }, 3e-3);
    }
}

#[test]
fn softcaps_of_all_sizes_with_and_without_sinks() {
    for (head_dim, has_sinks) in [(32, true), (128, false), (256, true)] {
        let case = Case::new(&alternating(4, 2, head_dim));
        assert_case(&Case { softcap: Some(4.0), has_sinks, ..case }, 3e-3);
    }
}

#[test]
fn caches_of_eight_bits() {
    for kv_dtype in [KvDtype::Int8, KvDtype::Fp8] {
        let tolerance = if kv_dtype == KvDtype::Int8 { 6e-2 } else { 0.4 };
        for (layers, softcap) in [(&alternating(4, 2, 64)[..], None), (&alternating(4, 2, 128), Some(4.0))] {
            let case = Case::new(layers);
            let options = Options { kv_dtype: Some(kv_dtype), ..case.options.clone() };
            assert_case(&Case { has_sinks: true, softcap, options, ..case }, tolerance);
        }
    }
}

/// Gemma 4's pattern with a third size of heads. A page that all sizes divide would be too large.
#[test]
fn blocks_of_eight_bits_have_padding() {
    let layers = [WIDE[0], WIDE[1], WIDE[2], (4, 1, 96, None, 3)];
    for kv_dtype in [KvDtype::Int8, KvDtype::Fp8] {
        let case = Case::new(&layers);
        let options = Options { kv_dtype: Some(kv_dtype), ..case.options.clone() };
        let case = Case { options, ..case };
        let layout = case.layout();
        let tokens = |group: usize| 2 * layout.groups[group].heads * (layout.groups[group].head_dim + 2);
        assert!((0..3).any(|group| layout.layer_bytes(group) > BLOCK * tokens(group)), "{layout:?}");
        check_layout(&layout).unwrap();
        assert_case(&case, if kv_dtype == KvDtype::Int8 { 9e-2 } else { 0.5 });
    }
}

#[test]
fn the_papers_kernels_compute_all_of_it() {
    for attention in [AttentionKernels::V1, AttentionKernels::V2] {
        let options = Options { attention, cuda_graphs: false, ..Options::default() };
        assert_case(&Case { options: options.clone(), ..Case::new(&WIDE) }, 3e-3);
        let capped = Case::new(&alternating(4, 2, 64));
        assert_case(&Case { softcap: Some(4.0), has_sinks: true, options, ..capped }, 3e-3);
    }
}

/// Layers with equal windows share a plan if their launches divide the work alike.
#[test]
fn a_step_plans_each_kind_of_layer_once() {
    let plans = |layers: &[Layer]| {
        let case = Case::new(layers);
        let launches = Bench::new(&case).rehearse(&[(0, 0, 1)]);
        launches.iter().filter(|launch| launch.kernel == "plan_paged_attention").count()
    };
    assert_eq!(plans(&WIDE), 2);
    assert_eq!(plans(&alternating(4, 2, 64)), 2);
    assert_eq!(plans(&[(4, 2, 64, None, 0), (4, 2, 64, None, 1)]), 1);
}

#[test]
fn softcaps_without_kernels_are_refused() {
    let case = Case { softcap: Some(4.0), ..Case::new(&alternating(4, 2, 64)) };
    let types = (DType::F16, kv(&case.options));
    let driver = Driver::emulator().unwrap();
    let backend = CudaBackend::new(driver, 0, &case.config(), Shard::WHOLE, &case.options, types, false);
    let error = backend.err().unwrap().to_string();
    assert!(error.contains("softcap") && error.contains("head size 64"), "{error}");
}

/// Three odd sizes, which no known model has.
#[test]
fn padding_of_sixteen_bits_is_refused() {
    let layer = |i: usize| match i {
        0..29 => (3, 3, 256, Some(1024), i),
        29..60 => (5, 5, 160, None, i),
        _ => (1, 1, 96, Some(7), i),
    };
    let layout = Case::new(&(0..67).map(layer).collect::<Vec<Layer>>()).layout();
    let error = check_layout(&layout).unwrap_err().to_string();
    assert!(error.contains("padding") && error.contains("f16"), "{error}");
}
