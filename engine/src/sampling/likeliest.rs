//! The likeliest tokens of a row of scores.

use kernels::arithmetic::{part, weight};

/// The indices of the `k` greatest elements, greatest first, the lower index first among equals.
pub(crate) fn likeliest(x: &[f32], k: usize) -> Vec<u32> {
    let k = k.min(x.len());
    if k == 0 {
        return Vec::new();
    }
    let order = |a: &u32, b: &u32| x[*b as usize].total_cmp(&x[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..x.len() as u32).collect();
    if k < ids.len() {
        ids.select_nth_unstable_by(k - 1, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids
}

/// The smallest set of likeliest tokens, among the `k` likeliest, whose probability reaches `top_p` (in units of 2^-64,
/// 0 is off). A token is kept if the tokens before it have not reached `top_p`.
pub(crate) fn nucleus(scaled: &[f32], k: usize, top_p: u64) -> Vec<u32> {
    if top_p == 0 {
        return likeliest(scaled, k);
    }
    // Few tokens usually suffice, so the sorted set grows step by step up to the whole vocabulary.
    let all = k == scaled.len();
    let mut width = if all { 64.min(k) } else { k };
    let total: u64 = if all { scaled.iter().map(|&x| weight(x)).sum() } else { weights(scaled, &likeliest(scaled, k)) };
    let target = part(total, top_p);
    loop {
        let mut order = likeliest(scaled, width);
        let mut before = 0;
        let kept = order.iter().position(|&t| {
            let enough = before >= target;
            before += weight(scaled[t as usize]);
            enough
        });
        if let Some(kept) = kept {
            order.truncate(kept);
            return order;
        }
        if order.len() == k {
            return order;
        }
        width = (width * 8).min(k);
    }
}

/// The sum of the weights of `tokens`.
fn weights(scaled: &[f32], tokens: &[u32]) -> u64 {
    tokens.iter().map(|&t| weight(scaled[t as usize])).sum()
}

#[cfg(test)]
mod tests {
    use kernels::arithmetic::share;

    use super::*;

    #[test]
    fn top_p_over_a_flat_vocabulary_keeps_its_share() {
        let logits = vec![0.0; 1000];
        assert_eq!(nucleus(&logits, 1000, share(0.5)).len(), 500);
        assert_eq!(nucleus(&logits, 200, share(0.5)).len(), 100);
    }
}
