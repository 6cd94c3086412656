//! Recurrent layers against the recurrence of each token in double precision, and to the bit against other divisions of
//! the same tokens into steps.

use checkpoint::config::{Recurrent, RecurrentKind};

use super::*;
use crate::recurrent::{CpuRecurrent, NO_BLOCK, States};

const TOKENS: usize = 45;
const BLOCK: usize = 8;

fn shapes() -> [Recurrent; 4] {
    let delta = Recurrent {
        kind: RecurrentKind::DeltaNet,
        kernel: 4,
        kernel_bias: false,
        bias: false,
        key_heads: 2,
        heads: 4,
        key_dim: 32,
        value_dim: 48,
        tiled: false,
    };
    let mamba =
        Recurrent { kind: RecurrentKind::Mamba, kernel_bias: true, key_heads: 1, heads: 3, value_dim: 32, ..delta };
    let convolution = Recurrent { kind: RecurrentKind::Convolution, kernel: 3, heads: 40, value_dim: 1, ..delta };
    let convolution = Recurrent { key_heads: 0, key_dim: 0, ..convolution };
    // With AVX-512 a tile has one vector of 48 columns, two of 32 and four of 64.
    [delta, Recurrent { tiled: true, value_dim: 64, ..delta }, mamba, convolution]
}

fn weights(shape: Recurrent) -> CpuRecurrent {
    let Recurrent { kind, kernel, heads, .. } = shape;
    let count = if kind == RecurrentKind::Convolution { 0 } else { heads };
    CpuRecurrent {
        kernel: noise(1, kernel * shape.channels()),
        bias: shape.kernel_bias.then(|| noise(2, shape.channels())),
        decay: noise(3, count).iter().map(|x| -1.0 - 0.9 * x).collect(),
        step_bias: noise(4, count),
        skip: (kind == RecurrentKind::Mamba).then(|| noise(5, count)),
        shape,
    }
}

/// `[T, channels]`, and the columns of heads.
fn inputs(shape: Recurrent, seed: u64) -> [Vec<f32>; 2] {
    let columns = match shape.kind {
        RecurrentKind::DeltaNet => 2 * shape.heads,
        RecurrentKind::Mamba => shape.heads,
        RecurrentKind::Convolution => 0,
    };
    [noise(seed, TOKENS * shape.channels()), noise(seed + 1, TOKENS * columns).iter().map(|x| 2.0 * x).collect()]
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The definition, token by token.
fn reference(weight: &CpuRecurrent, [x, steps]: &[Vec<f32>; 2]) -> Vec<f64> {
    let shape = weight.shape;
    let Recurrent { kind, kernel, key_heads, heads, key_dim, value_dim, tiled, .. } = shape;
    let (channels, keys) = (shape.channels(), shape.key_width());
    let mut matrices = vec![0.0; heads * key_dim * value_dim];
    let mut out = Vec::new();
    for t in 0..TOKENS {
        let mixed: Vec<f64> = (0..channels)
            .map(|c| {
                let tap = |j: usize| f64::from(weight.kernel[j * channels + c]);
                let sum =
                    (0..kernel.min(t + 1)).map(|back| tap(kernel - 1 - back) * f64::from(x[(t - back) * channels + c]));
                let sum = sum.sum::<f64>() + weight.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
                if kind == RecurrentKind::Convolution { sum } else { silu(sum) }
            })
            .collect();
        if kind == RecurrentKind::Convolution {
            out.extend(mixed);
            continue;
        }
        let columns = steps.len() / TOKENS;
        for head in 0..heads {
            let step = f64::from(steps[t * columns + columns - heads + head]) + f64::from(weight.step_bias[head]);
            let step = step.exp().ln_1p();
            let decay = (f64::from(weight.decay[head]) * step).exp();
            let key_head = if tiled { head % key_heads } else { head * key_heads / heads };
            let part = |first: usize, i: usize, size: usize| mixed[first + i * size..][..size].to_vec();
            let unit = |x: Vec<f64>, length: f64| -> Vec<f64> {
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm * length).collect()
            };
            let matrix = &mut matrices[head * key_dim * value_dim..][..key_dim * value_dim];
            matrix.iter_mut().for_each(|s| *s *= decay);
            let (query, key, value, added): (Vec<f64>, Vec<f64>, Vec<f64>, Vec<f64>) = match kind {
                RecurrentKind::DeltaNet => {
                    let query = unit(part(0, key_head, key_dim), (key_dim as f64).powf(-0.5));
                    let key = unit(part(keys, key_head, key_dim), 1.0);
                    let value = part(2 * keys, head, value_dim);
                    let rate = 1.0 / (1.0 + (-f64::from(steps[t * columns + head])).exp());
                    let seen = |c: usize| (0..key_dim).map(|i| key[i] * matrix[i * value_dim + c]).sum::<f64>();
                    let added = value.iter().enumerate().map(|(c, v)| (v - seen(c)) * rate).collect();
                    (query, key, value, added)
                }
                _ => {
                    let value = part(0, head, value_dim);
                    let inner = shape.inner();
                    let added = value.iter().map(|v| v * step).collect();
                    (part(inner + keys, key_head, key_dim), part(inner, key_head, key_dim), value, added)
                }
            };
            for (i, row) in matrix.chunks_mut(value_dim).enumerate() {
                row.iter_mut().zip(&added).for_each(|(s, a)| *s += key[i] * a);
            }
            let skip = weight.skip.as_ref().map_or(0.0, |skip| f64::from(skip[head]));
            out.extend(
                (0..value_dim)
                    .map(|c| (0..key_dim).map(|i| query[i] * matrix[i * value_dim + c]).sum::<f64>() + skip * value[c]),
            );
        }
    }
    out
}

/// Computes a sequence, or two next to each other, in steps of the given sizes. Keeps only the last block of each step and
/// the blocks that `keeps` chooses.
fn computed(
    cpu: &Cpu,
    weight: &CpuRecurrent,
    sequences: &[&[Vec<f32>; 2]],
    steps: &[usize],
    keeps: impl Fn(usize) -> bool,
) -> Vec<Vec<u32>> {
    let (shape, per_sequence) = (weight.shape, TOKENS.div_ceil(BLOCK));
    let stride = shape.state() + 3;
    let mut blocks = vec![f32::NAN; sequences.len() * per_sequence * stride];
    let mut out = vec![Vec::new(); sequences.len()];
    let (mut done, mut sizes) = (0, steps.iter().cycle());
    while done < TOKENS {
        let len = (*sizes.next().unwrap()).min(TOKENS - done);
        let context = done + len;
        let (mut spans, mut tables, mut rows) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        for (i, input) in sequences.iter().enumerate() {
            spans.push(Span { start: i * len, len, context, table: tables.len() });
            // The last blocks of earlier steps remain.
            let has = |index: usize| keeps(index) || index < done.div_ceil(BLOCK) || index == (context - 1) / BLOCK;
            // Blocks of sequences are interleaved, from the last to the first.
            let block = |index: usize| ((per_sequence - 1 - index) * sequences.len() + i) as u32;
            tables.extend((0..context.div_ceil(BLOCK)).map(|at| if has(at) { block(at) } else { NO_BLOCK }));
            for (rows, all) in rows.iter_mut().zip(*input) {
                let width = all.len() / TOKENS;
                rows.extend_from_slice(&all[done * width..context * width]);
            }
        }
        let x = tensor(cpu, sequences.len() * len, &rows[0]);
        let columns = (!rows[1].is_empty()).then(|| tensor(cpu, sequences.len() * len, &rows[1]));
        let states = States { blocks: &mut blocks, stride, block_size: BLOCK, spans: &spans, tables: &tables };
        let result = cpu.recurrent(&x, columns.as_ref(), weight, states);
        for (out, rows) in out.iter_mut().zip(bits(&result).chunks(len * shape.inner())) {
            out.extend_from_slice(rows);
        }
        done = context;
    }
    out
}

#[test]
fn recurrent_layers_match_the_recurrence_in_f64() {
    let cpu = backend(2);
    for shape in shapes() {
        let (weight, input) = (weights(shape), inputs(shape, 10));
        let got: Vec<f32> =
            computed(&cpu, &weight, &[&input], &[TOKENS], |_| false)[0].iter().map(|b| f32::from_bits(*b)).collect();
        assert_close(&got, &reference(&weight, &input), 1e-5, &format!("{:?}", shape.kind));
    }
}

#[test]
fn recurrent_layers_do_not_depend_on_steps_threads_or_other_sequences() {
    for shape in shapes() {
        let weight = weights(shape);
        let both = [inputs(shape, 10), inputs(shape, 20)];
        let alone = |input| computed(&backend(1), &weight, &[input], &[TOKENS], |_| false).remove(0);
        let want = [alone(&both[0]), alone(&both[1])];
        for (threads, steps) in [(1, &[1][..]), (3, &[2]), (2, &[7, 1, 3]), (1, &[8]), (4, &[21])] {
            let cpu = backend(threads);
            let got = computed(&cpu, &weight, &[&both[0], &both[1]], steps, |index| index % 2 == 0);
            assert!(got == want, "{:?} in steps of {steps:?}", shape.kind);
        }
    }
}
