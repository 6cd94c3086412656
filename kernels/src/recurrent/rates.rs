//! The decays and rates of a head, which depend on the columns of steps.

use crate::arithmetic::{exp, ln};

/// The numbers that control a head's decays and rates.
#[derive(Clone, Copy)]
pub struct Rates<const DELTA: u32> {
    /// The columns of the sequence's first row.
    pub steps: *const f32,
    pub stride: u32,
    pub heads: u32,
    pub head: u32,
    pub decay: f32,
    pub bias: f32,
}

impl<const DELTA: u32> Rates<DELTA> {
    /// Returns the logarithm of a row's decay, and its rate. Rows from `rows` on change nothing.
    ///
    /// # Safety
    /// The steps have `rows` rows.
    #[inline(always)]
    pub unsafe fn of_row(&self, row: u32, rows: u32) -> (f32, f32) {
        if row >= rows {
            return (0.0, 0.0);
        }
        // SAFETY: the row was just checked, and it has a column for each head, or two in a delta net.
        unsafe {
            let columns = self.steps.add(row as usize * self.stride as usize + self.head as usize);
            let step = softplus(*columns.add((DELTA * self.heads) as usize) + self.bias);
            let rate = if DELTA == 1 { 1.0 / (1.0 + exp(-*columns)) } else { step };
            (self.decay * step, rate)
        }
    }
}

/// Returns `ln(1 + e^x)`, which is accurate for small results too.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    if x > 20.0 {
        return x;
    }
    let power = exp(x);
    let sum = 1.0 + power;
    // The quotient corrects the rounding of the sum (Kahan).
    if sum == 1.0 { power } else { ln(sum) * (power / (sum - 1.0)) }
}
