//! Parameters and results of calls.

use super::access::lanes;
use super::machine::Machine;
use super::warp::{Frame, Warp};
use crate::program::{Op, Transfer};

impl Machine<'_> {
    /// Copies parameters of a call within the lanes' private memory.
    pub(super) fn transfer(&self, warp: &mut Warp, transfers: &[Transfer], mask: u32) {
        for &(from, to, bytes) in transfers {
            for lane in lanes(mask) {
                let base = lane * self.kernel.private;
                warp.private.copy_within(base + from..base + from + bytes, base + to);
            }
        }
    }

    pub(super) fn return_results(&self, warp: &mut Warp, ended: &[Frame]) {
        for frame in ended {
            if let Op::Call(call) = &self.kernel.code[frame.call as usize].op {
                self.transfer(warp, &call.results, frame.mask & warp.live);
            }
        }
    }
}
