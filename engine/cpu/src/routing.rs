//! Routers: which experts a token uses, and how much each of them counts.
//!
//! Experts are ranked by score. Of experts with equal scores, the first ranks higher. A score that is not a number ranks
//! above all numbers. The token's result is then not a number either.

use checkpoint::config::{ExpertGroups, RouterScores, Routing, SharedExpert};

use super::math::{self, exp, sigmoid};

/// Added to the sum of scores before division by it. Scores of zero then stay zero.
const TINY: f32 = 1e-20;

/// How tokens choose experts.
pub struct Router {
    /// The settings.
    pub routing: Routing,
    /// `[E]`: numbers that are added to scores for the choice only.
    pub correction: Option<Vec<f32>>,
    /// `[E]`: factors on the scores of the chosen experts.
    pub scale: Option<Vec<f32>>,
    /// With `Some`, the last expert is used by every token. If it has a gate, the last logit belongs to the gate.
    pub shared: Option<SharedExpert>,
}

/// An expert that a token uses, and the factor on the expert's result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Choice {
    pub expert: u32,
    pub factor: f32,
}

/// Buffers for the choices of a token.
#[derive(Default)]
pub(super) struct Scratch {
    scores: Vec<f32>,
    /// The numbers that rank experts.
    keys: Vec<f32>,
    groups: Vec<f32>,
    chosen_groups: Vec<usize>,
    chosen: Vec<usize>,
}

impl Router {
    /// The number of experts that a token uses, including a shared one.
    pub(super) fn uses(&self) -> usize {
        self.routing.top_k + usize::from(self.shared.is_some())
    }

    /// Chooses experts by a token's `logits`, and writes them to `to` in order of their numbers.
    pub(super) fn choose(&self, logits: &[f32], to: &mut [Choice], scratch: &mut Scratch) {
        let is_gated = self.shared.is_some_and(|shared| shared.gated);
        let (logits, gate) = logits.split_at(logits.len() - usize::from(is_gated));
        let Routing { top_k, scores, renormalised, scale, groups, .. } = self.routing;
        scratch.score(logits, scores, self.correction.as_deref());
        match groups {
            None => best(&scratch.keys, 0..logits.len(), top_k, &mut scratch.chosen),
            Some(groups) => scratch.choose_in_groups(groups, top_k),
        }
        let Scratch { scores, chosen, .. } = scratch;
        let sum: f32 = chosen.iter().map(|&expert| scores[expert]).sum();
        let divisor = if renormalised { sum + TINY } else { 1.0 };
        chosen.sort_unstable();
        for (to, &expert) in to.iter_mut().zip(&*chosen) {
            let own = self.scale.as_ref().map_or(1.0, |scale| scale[expert]);
            *to = Choice { expert: expert as u32, factor: scores[expert] / divisor * scale * own };
        }
        if let (Some(_), Some(last)) = (self.shared, to.last_mut()) {
            let factor = gate.first().map_or(1.0, |logit| sigmoid(*logit));
            *last = Choice { expert: logits.len() as u32, factor };
        }
    }

    /// Returns the smallest gap between the last chosen expert or group and the next one, divided by the largest logit.
    /// Rounding changes corrected scores less than logits, so their gap is a lower bound.
    fn gap(&self, logits: &[f32], to: &mut [Choice], scratch: &mut Scratch) -> f32 {
        self.choose(logits, to, scratch);
        let Scratch { keys, groups, chosen_groups, .. } = scratch;
        let mut ranked = Vec::new();
        let mut gap = |keys: &[f32], candidates: Vec<usize>, count: usize| {
            best(keys, candidates.into_iter(), count + 1, &mut ranked);
            ranked.get(count).map_or(f32::INFINITY, |&next| keys[ranked[count - 1]] - keys[next])
        };
        let largest = logits[..keys.len()].iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
        let smallest = match self.routing.groups {
            None => gap(keys, (0..keys.len()).collect(), self.routing.top_k),
            Some(ExpertGroups { count, top_k, .. }) => {
                let size = keys.len() / count;
                let experts = chosen_groups.iter().flat_map(|group| group * size..(group + 1) * size).collect();
                gap(groups, (0..count).collect(), top_k).min(gap(keys, experts, self.routing.top_k))
            }
        };
        smallest / largest
    }
}

/// Measures routers for tests. See [`router_gaps`].
pub(super) mod gaps {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static GAPS: RefCell<Option<Vec<f32>>> = const { RefCell::new(None) };
    }

    /// Runs `work` and returns each row's smallest gap over all layers that this thread computes in it. A gap is the
    /// distance between the last chosen and the first unchosen expert, divided by the largest logit. Every batch must have
    /// the same rows. For tests: a device that rounds differently may choose other experts where gaps are small.
    pub fn router_gaps<R>(work: impl FnOnce() -> R) -> (R, Vec<f32>) {
        GAPS.set(Some(Vec::new()));
        let result = work();
        (result, GAPS.take().unwrap_or_default())
    }

    /// Records the gaps of a layer if a test measures them.
    pub(crate) fn record(router: &Router, logits: &[f32], cols: usize) {
        GAPS.with_borrow_mut(|gaps| {
            let Some(gaps) = gaps else { return };
            let rows = logits.len() / cols;
            gaps.resize(gaps.len().max(rows), f32::INFINITY);
            let (mut to, mut scratch) = (vec![Choice::default(); router.uses()], Scratch::default());
            for (smallest, logits) in gaps.iter_mut().zip(logits.chunks(cols)) {
                *smallest = smallest.min(router.gap(logits, &mut to, &mut scratch));
            }
        });
    }
}

impl Scratch {
    /// Computes the scores of all experts, and the numbers that rank them.
    fn score(&mut self, logits: &[f32], scores: RouterScores, correction: Option<&[f32]>) {
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        match scores {
            RouterScores::Softmax => softmax(&mut self.scores),
            RouterScores::Sigmoid => self.scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        }
        self.keys.clear();
        match correction {
            Some(correction) => self.keys.extend(self.scores.iter().zip(correction).map(|(score, c)| score + c)),
            // Scores have the order of logits, but may be equal where logits differ.
            None => self.keys.extend_from_slice(logits),
        }
    }

    /// Chooses the best groups, and then the `top_k` best experts in them.
    fn choose_in_groups(&mut self, groups: ExpertGroups, top_k: usize) {
        let size = self.keys.len() / groups.count;
        self.groups.clear();
        for group in self.keys.chunks_exact(size) {
            best(group, 0..size, groups.best, &mut self.chosen);
            self.groups.push(self.chosen.iter().map(|&expert| group[expert]).sum());
        }
        best(&self.groups, 0..groups.count, groups.top_k, &mut self.chosen_groups);
        self.chosen_groups.sort_unstable();
        let experts = self.chosen_groups.iter().flat_map(|group| group * size..(group + 1) * size);
        best(&self.keys, experts, top_k, &mut self.chosen);
    }
}

/// Finds the `count` candidates with the highest keys, best first. `candidates` must be in ascending order.
fn best(keys: &[f32], candidates: impl Iterator<Item = usize>, count: usize, to: &mut Vec<usize>) {
    let is_above = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
    to.clear();
    for candidate in candidates {
        let rank = to.partition_point(|&other| !is_above(keys[candidate], keys[other]));
        if rank < count {
            to.truncate(count - 1);
            to.insert(rank, candidate);
        }
    }
}

fn softmax(x: &mut [f32]) {
    let greatest = math::max(x);
    x.iter_mut().for_each(|x| *x = exp(*x - greatest));
    let sum = math::sum(x, |x| x);
    x.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(top_k: usize, scores: RouterScores) -> Routing {
        Routing { scores, renormalised: false, ..Routing::softmax(top_k) }
    }

    fn choose(router: &Router, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let mut to = vec![Choice::default(); router.uses()];
        router.choose(logits, &mut to, &mut Scratch::default());
        (to.iter().map(|choice| choice.expert).collect(), to.iter().map(|choice| choice.factor).collect())
    }

    fn plain(routing: Routing) -> Router {
        Router { routing, correction: None, scale: None, shared: None }
    }

    #[track_caller]
    fn assert_factors(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got:?} is not {want:?}");
        }
    }

    #[test]
    fn softmax_scores_are_divided_by_their_sum_on_request() {
        let logits = [0.5, -1.0, 2.0, 1.0];
        let exps: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
        let all: f64 = exps.iter().sum();
        let (experts, factors) = choose(&plain(routing(2, RouterScores::Softmax)), &logits);
        assert_eq!(experts, [2, 3]);
        assert_factors(&factors, &[exps[2] / all, exps[3] / all]);
        let router = plain(Routing { renormalised: true, scale: 3.0, ..routing(2, RouterScores::Softmax) });
        let router = Router { scale: Some(vec![1.0, 1.0, 1.0, 0.5]), ..router };
        assert_factors(
            &choose(&router, &logits).1,
            &[3.0 * exps[2] / (exps[2] + exps[3]), 1.5 * exps[3] / (exps[2] + exps[3])],
        );
    }

    #[test]
    fn corrections_change_the_choice_but_not_the_factors() {
        let router = plain(Routing { correction: true, ..routing(2, RouterScores::Sigmoid) });
        let router = Router { correction: Some(vec![0.9, 0.0, 0.0, 0.8]), ..router };
        let logits = [-2.0, 1.0, 0.5, -1.0];
        let (experts, factors) = choose(&router, &logits);
        assert_eq!(experts, [0, 3]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert_factors(&factors, &[sigmoid(-2.0), sigmoid(-1.0)]);
    }

    #[test]
    fn groups_limit_the_choice() {
        let groups = |best| Some(ExpertGroups { count: 3, top_k: 1, best });
        // The second group has the best expert, and the third the best pair.
        let logits = [0.0, 1.0, 5.0, -5.0, 4.0, 3.0];
        let of = |best| plain(Routing { groups: groups(best), ..routing(2, RouterScores::Softmax) });
        assert_eq!(choose(&of(1), &logits).0, [2, 3]);
        assert_eq!(choose(&of(2), &logits).0, [4, 5]);
        let low = [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, -1.0, -1.0];
        assert_eq!(choose(&of(1), &low).0, [2, 3], "an expert of a group that was not chosen is never used");
    }

    #[test]
    fn of_equal_scores_the_first_are_chosen() {
        for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
            for top_k in 1..=8 {
                let want: Vec<u32> = (0..top_k as u32).collect();
                assert_eq!(choose(&plain(routing(top_k, scores)), &[1.25; 8]).0, want);
            }
            let (experts, _) = choose(&plain(routing(3, scores)), &[0.0, 7.0, 0.0, 7.0, 0.0, 7.0, 7.0]);
            assert_eq!(experts, [1, 3, 5]);
        }
        let groups = Some(ExpertGroups { count: 4, top_k: 2, best: 2 });
        let router = plain(Routing { groups, ..routing(3, RouterScores::Softmax) });
        assert_eq!(choose(&router, &[0.0; 8]).0, [0, 1, 2]);
    }

    #[test]
    fn scores_that_are_no_numbers_reach_the_result() {
        let nan = f32::NAN;
        for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
            for groups in [None, Some(ExpertGroups { count: 2, top_k: 1, best: 2 })] {
                let router = plain(Routing { renormalised: true, groups, ..routing(2, scores) });
                for logits in [[9.0, 8.0, 1.0, nan], [nan; 4], [9.0, nan, nan, nan]] {
                    let (experts, factors) = choose(&router, &logits);
                    assert!(factors.iter().any(|factor| factor.is_nan()), "{logits:?}: {factors:?}");
                    assert!(experts[0] < experts[1] && experts[1] < 4, "{experts:?}");
                    assert_eq!(choose(&router, &logits).0, experts);
                }
            }
        }
        let infinite = choose(&plain(routing(2, RouterScores::Softmax)), &[f32::INFINITY, 0.0, f32::NEG_INFINITY, 1.0]);
        assert_eq!(infinite.0, [0, 3]);
    }

    #[test]
    fn a_shared_expert_is_always_used() {
        let routing = routing(1, RouterScores::Softmax);
        let shared = |gated| Router { shared: Some(SharedExpert { inner: 8, gated }), ..plain(routing) };
        assert_eq!(choose(&shared(false), &[0.0, 1.0]).0, [1, 2]);
        assert_eq!(choose(&shared(false), &[0.0, 1.0]).1[1], 1.0);
        let (experts, factors) = choose(&shared(true), &[0.0, 1.0, -3.0]);
        assert_eq!(experts, [1, 2]);
        assert_factors(&factors[1..], &[1.0 / (1.0 + 3f64.exp())]);
    }
}
