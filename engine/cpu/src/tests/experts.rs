//! Experts: the sums of a reference in double precision, and the same bits for every routing, batch and number of threads.

use checkpoint::config::{Activation, Clamp, Routing, SharedExpert};
use checkpoint::quantised::QuantType;

use super::*;

const HIDDEN: usize = 96;
const INNER: usize = 64;
const EXPERTS: usize = 8;
const TOP_K: usize = 2;

/// The element type of experts.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Float(DType),
    Quantised(QuantType),
}

const KINDS: [Kind; 5] = [
    Kind::Float(DType::F32),
    Kind::Float(DType::F16),
    Kind::Float(DType::Bf16),
    Kind::Quantised(QuantType::Q8_0),
    Kind::Quantised(QuantType::Q4_0),
];

/// A gate, up or down projection on the host: weight and bias.
type Matrix = (Vec<f32>, Vec<f32>);

fn routing() -> Routing {
    Routing::softmax(TOP_K)
}

/// Returns experts, and their weights as they were rounded. With `shared`, the last one is shared.
fn experts(cpu: &Cpu, kind: Kind, unit: GatedUnit, shared: bool) -> (CpuExperts, Vec<[Matrix; 3]>) {
    stored_or_loaded(cpu, kind, unit, shared, false)
}

fn stored_or_loaded(
    cpu: &Cpu,
    kind: Kind,
    unit: GatedUnit,
    shared: bool,
    is_stored: bool,
) -> (CpuExperts, Vec<[Matrix; 3]>) {
    let one = |expert: usize| {
        [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)].map(|(rows, cols)| {
            let seed = (expert * 3 + rows) as u64;
            let host =
                HostTensor::from_f32(vec![rows, cols], noise(seed, rows * cols).into_iter().map(|x| 0.2 * x).collect());
            let host = match kind {
                Kind::Float(dtype) => host.to_dtype(dtype),
                Kind::Quantised(kind) => {
                    let mut groups = Vec::new();
                    checkpoint::quantised::encode(kind, &host.elements().to_f32(), &mut groups).unwrap();
                    HostTensor::owned_groups(kind, vec![rows, cols], groups)
                }
            };
            let bias = noise(seed + 1, rows);
            let rounded = host.rows(0..rows).to_dtype(DType::F32).elements().to_f32();
            ((host, Some(HostTensor::from_f32(vec![rows], bias.clone()))), (rounded, bias))
        })
    };
    let all = (0..EXPERTS + usize::from(shared)).map(one);
    let (mut projections, mut matrices) = (Vec::new(), Vec::new());
    for [gate, up, down] in all {
        let hosts = [gate.0, up.0, down.0];
        projections.push(match is_stored {
            true => CpuExpert::Stored(hosts.map(|(weight, bias)| cpu.stored_projection(weight, bias).unwrap())),
            false => CpuExpert::Loaded(hosts.map(|(weight, bias)| cpu.projection(weight, bias).unwrap())),
        });
        matrices.push([gate.1, up.1, down.1]);
    }
    let shared = shared.then_some(SharedExpert { inner: INNER, gated: true });
    let router = Router { routing: routing(), correction: None, scale: None, shared };
    (CpuExperts { router, unit, count: EXPERTS, own: 0..EXPERTS, experts: projections }, matrices)
}

#[test]
fn experts_in_their_file_give_the_same_bits() {
    let cpu = backend(2);
    for kind in KINDS {
        let [loaded, stored] = [false, true].map(|is_stored| stored_or_loaded(&cpu, kind, UNITS[1], true, is_stored).0);
        for tokens in [1, 40] {
            let x = noise(9, tokens * HIDDEN);
            for (name, logits) in routings(tokens, EXPERTS + 1) {
                let [a, b] = [&loaded, &stored]
                    .map(|all| bits(&cpu.experts(&tensor(&cpu, tokens, &x), &tensor(&cpu, tokens, &logits), all)));
                assert!(a == b, "{kind:?}, {name}, {tokens}");
            }
        }
    }
}

fn project(x: &[f64], (weight, bias): &Matrix) -> Vec<f64> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    weight.chunks(x.len()).zip(bias).map(|(row, bias)| dot(row) + f64::from(*bias)).collect()
}

/// The result of one token in double precision.
fn reference(x: &[f32], logits: &[f32], unit: GatedUnit, matrices: &[[Matrix; 3]]) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let mut ranked: Vec<usize> = (0..EXPERTS).collect();
    ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let exp = |i: usize| f64::from(logits[i] - logits[ranked[0]]).exp();
    let sum: f64 = ranked[..TOP_K].iter().map(|i| exp(*i)).sum();
    let mut chosen: Vec<(usize, f64)> = ranked[..TOP_K].iter().map(|i| (*i, exp(*i) / sum)).collect();
    if matrices.len() > EXPERTS {
        chosen.push((EXPERTS, 1.0 / (1.0 + f64::from(-logits[EXPERTS]).exp())));
    }
    let mut out = vec![0.0; HIDDEN];
    for (expert, factor) in chosen {
        let [gate, up, down] = &matrices[expert];
        let inner: Vec<f64> = project(&x, gate)
            .into_iter()
            .zip(project(&x, up))
            .map(|(gate, up)| match unit {
                GatedUnit::Plain(_) => gate / (1.0 + (-gate).exp()) * up,
                GatedUnit::Clamped(Clamp { alpha, limit }) => {
                    let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                    let gate = gate.min(limit);
                    gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
                }
            })
            .collect();
        out.iter_mut().zip(project(&inner, down)).for_each(|(out, y)| *out += factor * y);
    }
    out
}

/// Logits of `tokens` tokens for each way of routing: at random, all tokens to the same experts, and all equal.
fn routings(tokens: usize, cols: usize) -> Vec<(&'static str, Vec<f32>)> {
    let random: Vec<f32> = noise(5, tokens * cols).into_iter().map(|x| 4.0 * x).collect();
    let mut same = random.clone();
    for row in same.chunks_mut(cols) {
        (row[3], row[6]) = (50.0, 40.0);
    }
    let mut alternating = random.clone();
    for (t, row) in alternating.chunks_mut(cols).enumerate() {
        (row[0], row[1 + t % 7]) = (50.0, 60.0);
    }
    vec![("random", random), ("same", same), ("alternating", alternating), ("equal", vec![0.5; tokens * cols])]
}

const UNITS: [GatedUnit; 2] =
    [GatedUnit::Plain(Activation::Silu), GatedUnit::Clamped(Clamp { alpha: 1.702, limit: 2.0 })];

#[test]
fn experts_match_the_reference() {
    for kind in KINDS {
        for (unit, shared) in UNITS.into_iter().zip([true, false]) {
            let cpu = backend(2);
            let (experts, matrices) = experts(&cpu, kind, unit, shared);
            let cols = matrices.len();
            for tokens in [1, 5, 40] {
                let x = noise(9, tokens * HIDDEN);
                for (name, logits) in routings(tokens, cols) {
                    let got = cpu.experts(&tensor(&cpu, tokens, &x), &tensor(&cpu, tokens, &logits), &experts);
                    let rows = x.chunks(HIDDEN).zip(logits.chunks(cols));
                    let want: Vec<f64> = rows.flat_map(|(x, l)| reference(x, l, unit, &matrices)).collect();
                    // Products with quantised weights also quantise activations.
                    let tolerance = if matches!(kind, Kind::Quantised(_)) { 0.05 } else { 2e-5 };
                    assert_close(got.as_slice(), &want, tolerance, &format!("{kind:?}, {unit:?}, {name}, {tokens}"));
                }
            }
        }
    }
}

#[test]
fn a_token_s_result_does_not_depend_on_its_batch_or_on_threads() {
    for kind in KINDS {
        let alone = backend(1);
        let (experts_alone, _) = experts(&alone, kind, UNITS[0], true);
        for threads in [1, 2, 3] {
            let cpu = backend(threads);
            let (experts, matrices) = experts(&cpu, kind, UNITS[0], true);
            let cols = matrices.len();
            for tokens in [2, 17, 100] {
                let x = noise(9, tokens * HIDDEN);
                for (name, logits) in routings(tokens, cols) {
                    let got = bits(&cpu.experts(&tensor(&cpu, tokens, &x), &tensor(&cpu, tokens, &logits), &experts));
                    for (t, (x, logits)) in x.chunks(HIDDEN).zip(logits.chunks(cols)).enumerate() {
                        let want = alone.experts(&tensor(&alone, 1, x), &tensor(&alone, 1, logits), &experts_alone);
                        let got = &got[t * HIDDEN..][..HIDDEN];
                        assert!(got == bits(&want), "{kind:?}, {threads} threads, {name}, token {t} of {tokens}");
                    }
                }
            }
        }
    }
}

/// The rows of all experts together are more than are computed at a time.
#[test]
fn experts_in_several_batches_give_the_same_bits() {
    let cpu = backend(2);
    let (experts, matrices) = experts(&cpu, Kind::Float(DType::F32), UNITS[0], true);
    let (tokens, cols) = (3000, matrices.len());
    let x = noise(9, tokens * HIDDEN);
    for (name, logits) in routings(tokens, cols) {
        let got = bits(&cpu.experts(&tensor(&cpu, tokens, &x), &tensor(&cpu, tokens, &logits), &experts));
        for t in (0..tokens).step_by(371) {
            let (x, logits) = (&x[t * HIDDEN..][..HIDDEN], &logits[t * cols..][..cols]);
            let want = cpu.experts(&tensor(&cpu, 1, x), &tensor(&cpu, 1, logits), &experts);
            assert!(got[t * HIDDEN..][..HIDDEN] == bits(&want), "{name}, token {t}");
        }
    }
}

#[test]
fn a_logit_that_is_no_number_affects_only_its_own_token() {
    let cpu = backend(2);
    let (experts, matrices) = experts(&cpu, Kind::Float(DType::F32), UNITS[0], false);
    let (tokens, cols) = (9, matrices.len());
    let x = noise(9, tokens * HIDDEN);
    let clean = routings(tokens, cols).remove(0).1;
    let mut dirty = clean.clone();
    dirty[4 * cols + 2] = f32::NAN;
    let [clean, dirty] =
        [clean, dirty].map(|logits| cpu.experts(&tensor(&cpu, tokens, &x), &tensor(&cpu, tokens, &logits), &experts));
    for (t, (clean, dirty)) in clean.as_slice().chunks(HIDDEN).zip(dirty.as_slice().chunks(HIDDEN)).enumerate() {
        match t {
            4 => assert!(dirty.iter().all(|x| x.is_nan())),
            _ => assert_eq!(dirty, clean),
        }
    }
}

#[test]
fn no_tokens_give_no_results() {
    let cpu = backend(1);
    let (experts, matrices) = experts(&cpu, Kind::Float(DType::F32), UNITS[0], false);
    let out = cpu.experts(&cpu.tensor(0, HIDDEN), &cpu.tensor(0, matrices.len()), &experts);
    assert_eq!((out.rows(), out.cols()), (0, HIDDEN));
}
