//! Experts: feed-forward layers. A router chooses a few of them for each token.

use super::MAX_WIDTH;
use super::fields::in_range;
use crate::error::{Error, Result};

/// Above the number of experts of every published model.
const MAX_EXPERTS: usize = 1 << 13;

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The number of experts that tokens are routed to.
    pub count: usize,
    /// Elements of the gate and up projections of an expert.
    pub inner: usize,
    /// How tokens choose experts.
    pub routing: Routing,
    /// With `Some`, gates are clamped.
    pub clamp: Option<Clamp>,
    /// Whether the projections of experts have biases.
    pub bias: bool,
    /// An expert that every token uses.
    pub shared: Option<SharedExpert>,
    /// With `Some`, the layer also has a dense feed-forward layer. With `None`, the experts replace it.
    pub beside: Option<BesideNorms>,
    /// Whether rows of a fused projection are inputs, and its columns alternate between gate and up.
    pub alternating: bool,
}

/// How a router scores experts and chooses some of them for each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// The number of experts that a token uses.
    pub top_k: usize,
    /// The function that turns logits into scores.
    pub scores: RouterScores,
    /// Whether the scores of the chosen experts are divided by their sum.
    pub renormalised: bool,
    /// The factor on the scores of the chosen experts.
    pub scale: f32,
    /// With `Some`, tokens choose groups of experts first.
    pub groups: Option<ExpertGroups>,
    /// Whether each expert has a number that is added to its score for the choice only.
    pub correction: bool,
    /// Whether the router has a bias.
    pub bias: bool,
    /// Whether the router normalises its input.
    pub norm: bool,
    /// Whether each expert has a factor on its score.
    pub expert_scale: bool,
}

/// The function that turns a router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Softmax over all experts.
    Softmax,
    /// The logistic function of each logit.
    Sigmoid,
}

/// Groups of consecutive experts. A token chooses groups by their best experts, and then experts in these groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// The number of groups, which divides the number of experts.
    pub count: usize,
    /// The number of groups that a token uses.
    pub top_k: usize,
    /// The number of best experts whose scores are added to the score of their group.
    pub best: usize,
}

/// Limits of a gated unit. It computes `gate * sigmoid(alpha * gate) * (up + 1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// The factor in the logistic function.
    pub alpha: f32,
    /// Gates are at most `limit`, and ups are between `-limit` and `limit`.
    pub limit: f32,
}

/// An expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Elements of its gate and up projections.
    pub inner: usize,
    /// Whether its result is multiplied by the logistic function of a projection of its input.
    pub gated: bool,
}

/// Norms of experts next to a dense feed-forward layer, given by the names of their weights. The experts and the router
/// read the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BesideNorms {
    /// The result of the dense layer.
    pub after_dense: &'static str,
    /// The input of the experts.
    pub before_experts: &'static str,
    /// The result of the experts.
    pub after_experts: &'static str,
}

impl Routing {
    /// The `top_k` experts with the highest logits, weighted by their softmax.
    pub const fn softmax(top_k: usize) -> Self {
        Routing {
            top_k,
            scores: RouterScores::Softmax,
            renormalised: true,
            scale: 1.0,
            groups: None,
            correction: false,
            bias: false,
            norm: false,
            expert_scale: false,
        }
    }
}

impl Experts {
    /// Plain experts in place of the dense feed-forward layer.
    pub(super) const fn plain(count: usize, inner: usize, routing: Routing) -> Self {
        Experts { count, inner, routing, clamp: None, bias: false, shared: None, beside: None, alternating: false }
    }

    pub(super) fn check(&self) -> Result<()> {
        let Experts { count, routing, .. } = *self;
        in_range("the number of experts", count, MAX_EXPERTS)?;
        in_range("the size of an expert", self.inner, 4 * MAX_WIDTH)?;
        if let Some(SharedExpert { inner, .. }) = self.shared {
            in_range("the size of the shared expert", inner, 4 * MAX_WIDTH)?;
        }
        let invalid = |sentence: String| Err(Error::Config(sentence));
        let top_k = routing.top_k;
        if top_k == 0 || top_k > count {
            return invalid(format!("each token uses {top_k} of {count} experts"));
        }
        if !(routing.scale > 0.0 && routing.scale.is_finite()) {
            return invalid(format!("the factor on the scores of experts is {}", routing.scale));
        }
        let Some(groups) = routing.groups else { return Ok(()) };
        if groups.count == 0 || !count.is_multiple_of(groups.count) {
            return invalid(format!("{count} experts cannot be divided into {} groups", groups.count));
        }
        let size = count / groups.count;
        if groups.top_k == 0 || groups.top_k > groups.count {
            return invalid(format!("each token uses {} of {} groups of experts", groups.top_k, groups.count));
        }
        if top_k > groups.top_k * size {
            let chosen = groups.top_k;
            return invalid(format!(
                "each token uses {top_k} experts of {chosen} groups, which have {size} experts each"
            ));
        }
        if groups.best == 0 || groups.best > size {
            return invalid(format!("the score of a group adds up {} of its {size} experts", groups.best));
        }
        Ok(())
    }
}
