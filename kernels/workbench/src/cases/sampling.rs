//! Sampling of tokens.

use cuda_std::launch::LaunchShape;
use kernels::arithmetic::{logprob, part, weight};
use kernels::sampling::noise::Noise;
use kernels::sampling::{Adjustment, NO_MASK, NO_TOKEN, Penalties, Request, THREADS, floor_bytes, mask_words, sample};
use launch::Result;

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::Gpu;
use crate::number::ProblemRng;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (rows, vocab) = match scale {
        Scale::Small => (2, 4096),
        Scale::Full => (64, 151_936),
    };
    let warm = Request { seed: 7, ..Request::GREEDY.with_temperature(0.8) };
    let requests = [
        ("greedy", Request::GREEDY),
        ("temperature", warm),
        ("top-k, top-p", Request { top_k: 50, ..warm.with_top_p(0.95) }),
        ("20 logprobs", Request { top: 20, ..Request::GREEDY }),
    ];
    let batch = |request| {
        let mut random = ProblemRng(1);
        (0..rows).map(|_| Row::new(bell(&mut random, vocab), request)).collect()
    };
    requests.into_iter().map(|(name, request)| case(name, batch(request))).collect()
}

/// Returns logits like a model's: bell-shaped and rounded to 16 bits, so many are equal.
pub fn bell(random: &mut ProblemRng, vocab: usize) -> Vec<f32> {
    let mut number = || 3.0 * (0..6).map(|_| random.unit()).sum::<f64>();
    (0..vocab).map(|_| half::bf16::from_f64(number()).to_f32()).collect()
}

/// A row of logits and the request for it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Logits, one for each token of the vocabulary.
    pub logits: Vec<f32>,
    /// The request. [`case`] sets the offsets of its adjustments and likeliest tokens.
    pub request: Request,
    /// Adjustments of any of the tokens.
    pub adjustments: Vec<Adjustment>,
    /// Bits of the tokens that may be chosen. If `None`, all may.
    pub mask: Option<Vec<u32>>,
}

/// The result for a row: token, bits of its logprob, and the likeliest tokens with the bits of theirs. It is `None` if
/// the row cannot be sampled: a logit is NaN or positive infinity, or all are negative infinity.
pub type Choice = Option<(u32, u32, Vec<(u32, u32)>)>;

/// Makes a case of `sample` on all rows in one launch. Tokens and logprobs must be bit-exact.
pub fn case(name: &str, rows: Vec<Row>) -> Case {
    let vocab = rows[0].logits.len();
    Case {
        kernel: "sample",
        shape: format!("{name}, {} rows of {vocab}", rows.len()),
        floor: Floor { bytes: floor_bytes(rows.len() as u64, vocab as u64), flops: 0 },
        prepare: Box::new(move |gpu| prepare(gpu, &rows)),
    }
}

fn prepare(gpu: &mut Gpu, rows: &[Row]) -> Result<Prepared> {
    let vocab = rows[0].logits.len();
    // Rows start at whole vectors. The elements between rows belong to no row.
    let stride = vocab.next_multiple_of(4) + 4;
    let (mut logits, mut requests, mut adjustments, mut masks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut tops = 0;
    for row in rows {
        logits.extend(row.logits.iter().copied().chain(std::iter::repeat(f32::NAN)).take(stride));
        let (first, count) = (adjustments.len() as u32, row.adjustments.len() as u32);
        let mask = row.mask.as_ref().map_or(NO_MASK, |_| masks.len() as u32 / mask_words(vocab as u32));
        masks.extend(row.mask.iter().flatten().copied());
        let request = Request { first_adjustment: first, adjustments: count, first_top: tops, mask, ..row.request };
        request.check(vocab as u32).unwrap_or_else(|error| panic!("{error}"));
        adjustments.extend(row.adjustments.iter().map(Adjustment::words));
        requests.push(request.words());
        tops += u32::from(request.top);
    }
    // A buffer needs at least one element.
    adjustments.push([0; 4]);
    masks.push(0);
    let tops = tops as usize + 1;
    let count = rows.len();
    let (tokens, logprobs) = (gpu.upload("tokens", &vec![0u32; count])?, gpu.upload("logprobs", &vec![0u32; count])?);
    let top_tokens = gpu.upload("top tokens", &vec![0u32; tops])?;
    let top_logprobs = gpu.upload("top logprobs", &vec![0u32; tops])?;
    let call = sample {
        logits: gpu.upload("logits", &logits)?.mut_ptr(),
        stride: stride as u32,
        vocab: vocab as u32,
        requests: gpu.upload("requests", &requests)?.ptr(),
        adjustments: gpu.upload("adjustments", &adjustments)?.mut_ptr(),
        masks: gpu.upload("masks", &masks)?.ptr(),
        tokens: tokens.mut_ptr(),
        logprobs: logprobs.mut_ptr(),
        top_tokens: top_tokens.mut_ptr(),
        top_logprobs: top_logprobs.mut_ptr(),
    };
    let truth: Vec<Choice> = rows.iter().map(Row::reference).collect();
    let widths: Vec<usize> = rows.iter().map(|row| row.request.top as usize).collect();
    Ok(Prepared {
        // SAFETY: the requests were checked against the vocabulary, and the buffers have room for everything that they
        // ask for.
        launch: Box::new(move |gpu| unsafe { gpu.launch(LaunchShape::linear(count as u32, THREADS), call) }),
        error: Box::new(move |gpu| {
            let mut tops = gpu.download(top_tokens)?.into_iter().zip(gpu.download(top_logprobs)?);
            let chosen = gpu.download(tokens)?.into_iter().zip(gpu.download(logprobs)?);
            let choice = |((token, logprob), &width): ((u32, u32), &usize)| {
                // A mask may leave fewer tokens than the request asks for.
                let top = tops.by_ref().take(width).filter(|top| top.0 != NO_TOKEN).collect();
                (token != NO_TOKEN).then_some((token, logprob, top))
            };
            Ok(exact(&chosen.zip(&widths).map(choice).collect::<Vec<Choice>>(), &truth))
        }),
    })
}

/// Returns the index of the greatest element, the first among equals.
fn argmax(x: &[f32]) -> usize {
    (1..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best })
}

/// Returns all indices from the greatest element to the smallest, the lower index first among equals.
fn sorted(x: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    order
}

impl Row {
    /// A row with no adjustments and no mask.
    pub fn new(logits: Vec<f32>, request: Request) -> Self {
        Row { logits, request, adjustments: Vec::new(), mask: None }
    }

    /// Returns whether the mask allows a token.
    fn allows(&self, token: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask[token / 32] >> (token % 32) & 1 == 1)
    }

    /// Returns the `count` likeliest tokens.
    pub fn likeliest(&self, count: usize) -> Vec<u32> {
        sorted(&self.logits).into_iter().take(count).map(|token| token as u32).collect()
    }

    /// Computes the reference by sorting the whole row.
    pub fn reference(&self) -> Choice {
        let (x, request) = (&self.logits, &self.request);
        if x.iter().any(|v| v.is_nan() || *v == f32::INFINITY) || x.iter().all(|v| *v == f32::NEG_INFINITY) {
            return None;
        }
        let greatest = x[argmax(x)];
        let sum = x.iter().map(|v| weight(v - greatest)).sum();
        let report = |token: usize| logprob(x[token], greatest, sum).to_bits();
        let allowed = |token: usize| if self.allows(token) { x[token] } else { f32::NEG_INFINITY };
        let mut adjusted: Vec<f32> = (0..x.len()).map(allowed).collect();
        for a in &self.adjustments {
            let logit = &mut adjusted[a.token as usize];
            *logit = request.penalties.adjust(*logit, a.count, a.bias);
        }
        let best = argmax(&adjusted);
        let sure = request.inverse_temperature == 0.0 || adjusted[best] == f32::NEG_INFINITY;
        let token = if sure { best } else { draw(request, &adjusted, best) };
        let chosen = logprob(allowed(token), greatest, sum).to_bits();
        let counts = |t: &usize| request.masked_top == 0 || self.mask.is_none() || allowed(*t) > f32::NEG_INFINITY;
        let likeliest = sorted(x).into_iter().filter(counts).take(request.top.into());
        let top = likeliest.map(|t| (t as u32, report(t))).collect();
        Some((token as u32, chosen, top))
    }
}

/// Applies top-k, then top-p, then min-p, and chooses the greatest sum of score and noise.
fn draw(request: &Request, logits: &[f32], best: usize) -> usize {
    let scores: Vec<f32> = logits.iter().map(|v| (v - logits[best]) * request.inverse_temperature).collect();
    let mut kept = sorted(&scores);
    if request.top_k > 0 {
        kept.truncate(request.top_k as usize);
    }
    if request.top_p > 0 {
        let target = part(kept.iter().map(|&t| weight(scores[t])).sum(), request.top_p);
        let mut before = 0;
        kept.retain(|&t| {
            let stays = before < target;
            before += weight(scores[t]);
            stays
        });
    }
    kept.retain(|&t| scores[t] >= request.floor);
    kept.sort_unstable();
    let noise = Noise::new(request.seed, request.position.into());
    let values: Vec<f32> = kept.iter().map(|&t| scores[t] + noise.gumbel(t as u32)).collect();
    kept[argmax(&values)]
}

/// Returns a row for every kind of request, each with its own logits.
pub fn every_kind(vocab: usize, seed: u64) -> Vec<Row> {
    let mut random = ProblemRng(seed);
    let n = vocab as u32;
    let warm = |t| Request { seed: seed << 33 | 5, position: 3, ..Request::GREEDY.with_temperature(t) };
    let penalties = Penalties { repetition: 1.3, presence: 0.7, frequency: 0.4 };
    let kinds = [
        (Request::GREEDY, 0),
        (Request { top: n.min(5) as u16, ..Request::GREEDY }, 0),
        (Request { penalties, top: 1, ..Request::GREEDY }, 9),
        (warm(0.8), 0),
        (Request { top_k: 20, ..warm(1.5) }, 0),
        (warm(1.0).with_top_p(0.9), 0),
        (Request { top_k: 50, penalties, ..warm(1.2).with_top_p(0.95) }, 40),
        (warm(2.0).with_min_p(0.02), 0),
        (Request { top_k: 1, ..warm(1.0) }, 0),
        (Request { top_k: n + 3, ..warm(3.0).with_top_p(0.999) }, 0),
        (Request { top: (n / 2).min(4096) as u16, ..warm(1e-40) }, 0),
        (warm(30.0).with_top_p(1e-30), 1),
        (Request { top_k: 7, top: n.min(16) as u16, penalties, ..warm(0.5).with_top_p(0.5).with_min_p(0.3) }, 3),
    ];
    let row = |(request, adjusted): (Request, usize)| {
        let mut row = Row::new(bell(&mut random, vocab), request);
        // Adjustments apply to likely tokens, so they change the result: unseen tokens, some of the prompt, and
        // generated ones.
        row.adjustments = (0..).zip(row.likeliest(adjusted)).map(|(i, token)| adjustment(i, token)).collect();
        row
    };
    let mut rows: Vec<Row> = kinds.into_iter().map(row).collect();
    // Requests of several kinds with a mask that allows one token in `one_in`. The last two masks allow no token.
    for (kind, one_in) in [(0, 2), (2, 3), (3, 40), (4, 3), (6, 2), (9, 2), (12, 5), (0, 0), (3, 0)] {
        let allows = |token: usize| one_in > 0 && (token * 7 + kind).is_multiple_of(one_in);
        let mut mask = vec![0; vocab.div_ceil(32)];
        (0..vocab).filter(|token| allows(*token)).for_each(|token| mask[token / 32] |= 1 << (token % 32));
        rows.push(Row { mask: Some(mask), ..rows[kind].clone() });
    }
    // Requests as in a beam search: the likeliest tokens that a mask allows. The mask allows more tokens than
    // requested, some, one, or none.
    for one_in in [2, 50, vocab, 0] {
        let masked = rows.iter().find(|row| row.mask.is_some()).cloned();
        let mut mask = vec![0; vocab.div_ceil(32)];
        (0..vocab)
            .filter(|token| one_in > 0 && token % one_in == one_in / 2)
            .for_each(|token| mask[token / 32] |= 1 << (token % 32));
        let request = Request { top: n.min(16) as u16, masked_top: 1, ..Request::GREEDY };
        rows.extend(masked.map(|row| Row { mask: Some(mask), request, ..row }));
    }
    rows
}

fn adjustment(i: i32, token: u32) -> Adjustment {
    let bias = if i % 4 == 3 { 1.5 } else { 0.0 };
    Adjustment { token, count: i % 5 - 1, bias, raw: 0.0 }
}
