//! How a router is launched.

use core::fmt;

use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};

use super::route::{GATED, MOST, RENORMALISED, SHARED, SIGMOID, THREADS, WARPS, route};

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Experts of the layer, without a shared one.
    pub experts: u32,
    /// Experts that a token uses, without a shared one.
    pub top_k: u32,
    /// Whether scores are logistic functions of logits instead of their softmax.
    pub is_sigmoid: bool,
    /// Whether the scores of the chosen experts are divided by their sum.
    pub is_renormalised: bool,
    /// Factor on all scores.
    pub scale: f32,
    /// With `Some`, tokens choose groups of experts first.
    pub groups: Option<Groups>,
    /// With `Some`, every token uses a shared expert, and the value says whether it has a gate.
    pub shared: Option<bool>,
}

/// Groups of consecutive experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups, which divide the number of experts.
    pub count: u32,
    /// Groups that a token uses.
    pub top_k: u32,
    /// Experts whose scores are added up for the score of a group.
    pub best: u32,
}

/// Device addresses of a router's arrays.
#[derive(Clone, Copy, Debug)]
pub struct RouterOperands {
    /// `[tokens]`, rows `stride` numbers apart. If the shared expert has a gate, its logit follows the experts' logits.
    pub logits: DevicePtr<f32>,
    /// Numbers between rows of logits.
    pub stride: u32,
    /// `[tokens]`: tokens with a negative number are padding, which uses no experts. Null without padding.
    pub kv_slots: DevicePtr<i32>,
    /// `[experts]`: added to scores for the choice, or null.
    pub correction: DevicePtr<f32>,
    /// `[experts]`: factors on the scores of chosen experts, or null.
    pub scale: DevicePtr<f32>,
    /// `[tokens][top_k]`
    pub chosen: DevicePtrMut<u32>,
    /// `[tokens][uses]`
    pub factors: DevicePtrMut<f32>,
}

/// More experts for each token, or more groups of experts, than a warp has lanes. Has the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedRouter(u32);

impl fmt::Display for UnsupportedRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a router with {} experts for each token or groups of experts, but at most {MOST}", self.0)
    }
}

impl core::error::Error for UnsupportedRouter {}

impl Router {
    /// Refuses a router that has no kernel.
    ///
    /// # Errors
    /// [`UnsupportedRouter`], which says why.
    pub const fn check(self) -> Result<(), UnsupportedRouter> {
        if self.top_k > MOST {
            return Err(UnsupportedRouter(self.top_k));
        }
        match self.groups {
            Some(groups) if groups.count > MOST => Err(UnsupportedRouter(groups.count)),
            _ => Ok(()),
        }
    }

    /// Factors of a token: one for each of its experts, and one for a shared expert.
    pub const fn uses(self) -> u32 {
        self.top_k + self.shared.is_some() as u32
    }

    /// The shape of [`route()`]'s launch.
    pub const fn shape(self, tokens: u32) -> LaunchShape {
        LaunchShape::linear(tokens.div_ceil(WARPS), THREADS)
    }

    /// Returns the kernel with its arguments.
    pub fn call(self, tokens: u32, operands: RouterOperands) -> KernelCall {
        let RouterOperands { logits, stride, kv_slots, correction, scale: expert_scale, chosen, factors } = operands;
        let Router { experts, top_k, scale, groups, .. } = self;
        let groups = groups.unwrap_or(Groups { count: 1, top_k: 1, best: 1 });
        let bits = [
            (self.is_sigmoid, SIGMOID),
            (self.is_renormalised, RENORMALISED),
            (self.shared.is_some(), SHARED),
            (self.shared == Some(true), GATED),
        ];
        let flags = bits.into_iter().fold(0, |flags, (is_set, bit)| flags | if is_set { bit } else { 0 });
        let (groups, top_groups, best) = (groups.count, groups.top_k, groups.best);
        route {
            logits,
            kv_slots,
            correction,
            expert_scale,
            chosen,
            factors,
            stride,
            tokens,
            experts,
            top_k,
            groups,
            top_groups,
            best,
            scale,
            flags,
        }
        .into()
    }
}
