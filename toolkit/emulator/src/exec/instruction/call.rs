//! Parameters and results of calls.

use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::{Frame, Warp};
use crate::program::{Op, Program, Transfer};

/// Copies parameters or results of a call within the lanes' private memory.
pub(crate) fn transfer(program: &Program, warp: &mut Warp, transfers: &[Transfer], mask: u32) {
    for &(from, to, bytes) in transfers {
        for lane in lanes(mask) {
            let base = lane * program.private;
            warp.private.copy_within(base + from..base + from + bytes, base + to);
        }
    }
}

/// Copies the results of calls that have ended to their callers.
pub(crate) fn return_results(program: &Program, warp: &mut Warp, ended: &[Frame]) {
    for frame in ended {
        if let Op::Call(call) = &program.code[frame.call as usize].op {
            transfer(program, warp, &call.results, frame.mask & warp.live);
        }
    }
}
