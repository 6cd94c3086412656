//! A bound on what any eviction rule can save, even with knowledge of all later requests.
//!
//! The bound relaxes the problem in the manner of FOO (Berger, Beckmann and Harchol-Balter, 2018). A rule may keep any
//! part of a block from one use to the next. What it keeps between two requests must fit the memory. Keeping a block of
//! the groups without a window until request `r` saves the computing of its tokens. To resume after `n` blocks, `r`
//! also needs the blocks of its windows. They take at least `n * w(m) / m`, where `w` are the blocks of a window and `m`
//! is the longest hit of `r` in an unlimited memory. So each of the `n` blocks is charged `w(m) / m` more, while it is
//! kept. A window's blocks were last used no later than the other groups' blocks of the same tokens, so they are kept for
//! at least as long.
//!
//! Memory that running requests need does not count, and hits need not begin at the first block. Both make the bound
//! larger than what is possible.
//!
//! Each choice of prices for the memory between two requests gives a bound (the dual of the linear program). The search
//! begins with one price for all times and lowers the bound step by step.

use std::collections::{BTreeMap, HashMap};

use engine::tools::kv::KvLayout;

use super::{BLOCK_SIZE, Numbering, Saved, SessionRequest, Work, needed, unit, units};

/// Steps of the search.
const STEPS: usize = 400;

/// Blocks that were last used by the same request, and are used next by the same request.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// The requests.
    from: usize,
    to: usize,
    /// Memory of the blocks, in bytes.
    size: f64,
    /// What using them again saves.
    saved: Saved,
}

/// Returns the most that a trace can save with `bytes` bytes of memory. The parts are bounds of their own.
pub fn bound(trace: &[SessionRequest], layout: &KvLayout, work: &Work, bytes: usize) -> Saved {
    let kept = kept(trace, layout, work);
    let most = |value: fn(&Saved) -> f64| {
        let items: Vec<(usize, usize, f64, f64)> =
            kept.iter().map(|kept| (kept.from, kept.to, kept.size, value(&kept.saved))).collect();
        lowest(&items, trace.len(), bytes as f64)
    };
    Saved { tokens: most(|saved| saved.tokens), flops: most(|saved| saved.flops) }
}

/// Returns the blocks that requests can use again.
fn kept(trace: &[SessionRequest], layout: &KvLayout, work: &Work) -> Vec<Kept> {
    let units = units(layout);
    let unit = unit(layout) as f64;
    let (mut numbering, mut last_uses, mut all) = (Numbering::new(BLOCK_SIZE), HashMap::new(), Vec::new());
    for (to, request) in trace.iter().enumerate() {
        let asked = numbering.ask(request);
        let uses = asked.blocks[..asked.most_hits()].iter().map_while(|block| last_uses.get(block).copied());
        let uses: Vec<usize> = uses.collect();
        let share = |&(size, window): &(usize, Option<usize>)| {
            size as f64 * needed(window, uses.len(), BLOCK_SIZE) as f64 / uses.len() as f64
        };
        let size = unit * units.iter().map(share).sum::<f64>();
        let mut by_use: BTreeMap<usize, Kept> = BTreeMap::new();
        for (at, from) in uses.into_iter().enumerate() {
            let kept = by_use.entry(from).or_insert(Kept { from, to, ..Kept::default() });
            kept.size += size;
            kept.saved.tokens += BLOCK_SIZE as f64;
            kept.saved.flops += work.flops((at + 1) * BLOCK_SIZE) - work.flops(at * BLOCK_SIZE);
        }
        all.extend(by_use.into_values());
        last_uses.extend(asked.blocks.iter().map(|&block| (block, to)));
    }
    all
}

/// Returns the lowest bound that the search finds. An item has the requests that use it before and after, its size and
/// its value.
fn lowest(items: &[(usize, usize, f64, f64)], times: usize, memory: f64) -> f64 {
    let mut prices = vec![uniform(items, times, memory); times];
    let values: f64 = items.iter().map(|item| item.3).sum();
    let scale = prices[0].max(values / (memory * times as f64));
    let mut lowest = f64::INFINITY;
    for step in 0..STEPS {
        // The sum of all prices up to each time.
        let mut sums = vec![0.0; times + 1];
        prices.iter().enumerate().for_each(|(at, price)| sums[at + 1] = sums[at] + price);
        let mut used = vec![0.0; times + 1];
        let mut bound = memory * sums[times];
        for &(from, to, size, value) in items {
            // The memory between request `t - 1` and request `t` has the price `t`.
            let gain = value - size * (sums[to + 1] - sums[from + 1]);
            if gain > 0.0 {
                bound += gain;
                used[from + 1] += size;
                used[to + 1] -= size;
            }
        }
        lowest = lowest.min(bound);
        let rate = scale / (1.0 + step as f64 / 10.0).sqrt();
        let mut now = 0.0;
        for (price, change) in prices.iter_mut().zip(used) {
            now += change;
            *price = (*price + 0.1 * rate * (now / memory - 1.0)).max(0.0);
        }
    }
    lowest
}

/// Returns the price at which the wanted items fill the memory of all times together.
fn uniform(items: &[(usize, usize, f64, f64)], times: usize, memory: f64) -> f64 {
    let volume = |&(from, to, size, _): &(usize, usize, f64, f64)| size * (to - from) as f64;
    let mut by_price: Vec<(f64, f64)> = items.iter().map(|item| (item.3 / volume(item), volume(item))).collect();
    by_price.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut left = memory * times as f64;
    let last = by_price.iter().find(|(_, volume)| {
        left -= volume;
        left < 0.0
    });
    last.map_or(0.0, |(price, _)| *price)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_best_choice_of_items_that_do_not_overlap() {
        // Two items overlap at times 2 and 3, and a third follows.
        let items = [(0, 3, 1.0, 3.0), (1, 4, 1.0, 2.0), (4, 5, 1.0, 1.0)];
        let near = |bound: f64, want: f64| assert!(bound >= want - 1e-9 && bound < want + 0.1, "{bound} for {want}");
        near(lowest(&items, 6, 1.0), 4.0);
        near(lowest(&items, 6, 2.0), 6.0);
        near(lowest(&items, 6, 0.5), 2.0);
    }
}
