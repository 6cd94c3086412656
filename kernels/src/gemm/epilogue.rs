//! The epilogue of a product: applies bias, activation, gate and residual to the sums, and stores the results.
//!
//! All kernels share this code. It branches at run time on a number that is the same for all threads. A gated product
//! has the rows of both its weights in one matrix, see [`gated_row`].

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::unroll;
use cuda_std::vector::{HalfVector, Vector};

use super::activation::{Activation, activate};
use super::split::add;
use crate::element::Element;

/// The value that a product stores, where `s = x w^T + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `s`, or an activation of it, in 16 bits.
    Half(Option<Activation>),
    /// `act(gate) * up` in 16 bits, for weights whose rows are in [`gated_row`]'s order. The output has half as many
    /// columns.
    Gated(Activation),
    /// `out + s`, rounded once to 16 bits.
    Add,
    /// `s` in `f32`.
    Float,
}

/// Mask of the activation's number in [`Epilogue::bits`].
pub(crate) const ACTIVATION: u32 = 7;
/// Bit that says that the product is gated.
pub(crate) const GATED: u32 = 8;
/// Bit that says that the product is added to the output.
pub(super) const ADD: u32 = 16;
const FLOAT: u32 = 32;

impl Epilogue {
    /// Returns the number that kernels take.
    pub const fn bits(self) -> u32 {
        match self {
            Epilogue::Half(None) => 0,
            Epilogue::Half(Some(act)) => act as u32,
            Epilogue::Gated(act) => GATED | act as u32,
            Epilogue::Add => ADD,
            Epilogue::Float => FLOAT,
        }
    }

    /// Returns the output's columns for a weight of `n` rows.
    pub const fn columns(self, n: u32) -> u32 {
        if let Epilogue::Gated(_) = self { n / 2 } else { n }
    }

    /// Returns the bytes of an element of the output.
    pub const fn size(self) -> u32 {
        if let Epilogue::Float = self { 4 } else { 2 }
    }
}

/// Rows of gate that are next to each other in the weight of a gated product. As many rows of up follow them.
pub const GATED_ROWS: u32 = 8;

/// Returns the position of row `row` of gate or up in the weight of both: eight rows of gate, then the same eight rows
/// of up. A thread that has the sums of one therefore has the sums of the other.
pub const fn gated_row(row: u32, up: bool) -> u32 {
    row / GATED_ROWS * 2 * GATED_ROWS + up as u32 * GATED_ROWS + row % GATED_ROWS
}

/// A block's tile of sums in shared memory, `[rows][pitch]`. All but the address are constants.
#[derive(Clone, Copy)]
pub struct Staged {
    /// Address of the first sum.
    pub sums: *mut f32,
    /// Tokens.
    pub rows: u32,
    /// Rows of the weight, a power of two.
    pub columns: u32,
    /// Elements between tokens, a multiple of four.
    pub pitch: u32,
    /// Whether groups of eight columns are permuted, differently for each of four tokens. A warp's stores of fragments
    /// then have no bank conflicts, without padding between tokens.
    pub is_permuted: bool,
}

impl Staged {
    /// Returns the address of a sum.
    #[inline(always)]
    pub fn at(&self, row: u32, column: u32) -> *mut f32 {
        self.sums.wrapping_add((row * self.pitch + self.place(row, column)) as usize)
    }

    /// Returns the address of a token's first sum.
    #[inline(always)]
    pub fn row(&self, row: u32) -> *mut f32 {
        self.sums.wrapping_add((row * self.pitch) as usize)
    }

    /// Stores a warp's sums of 16 weight rows from `column` on by eight tokens from `token` on. The sums come from a
    /// product whose first factor is the weight. The tile must not be permuted.
    ///
    /// # Safety
    /// The sums are within the tile, and no other thread uses their places.
    #[inline(always)]
    pub unsafe fn put_of_weight(&self, token: u32, column: u32, [a, b, c, d]: [f32; 4]) {
        let lane = warp::lane_id();
        let at = self.at(token + lane % 4 * 2, column + lane / 4);
        // SAFETY: the places are within the tile, by this function's contract.
        unsafe {
            *at = a;
            *at.add(self.pitch as usize) = b;
            *at.add(8) = c;
            *at.add(8 + self.pitch as usize) = d;
        }
    }

    /// Returns the position of a column among a token's sums. It is the same for tokens that are a multiple of four
    /// apart.
    #[inline(always)]
    pub fn place(&self, row: u32, column: u32) -> u32 {
        if self.is_permuted { column ^ (row % 4 * 8) } else { column }
    }
}

/// The output of a product, and the epilogue that is applied to the sums before they are stored.
#[derive(Clone, Copy)]
pub struct ProductOutput {
    /// `[m][columns]`, of 16 bits or `f32`.
    pub out: *mut u8,
    /// Elements between rows of the output.
    pub stride: u32,
    /// `[n]`, aligned to 8 bytes, or null.
    pub bias: *const u16,
    /// Rows of the output.
    pub m: u32,
    /// Rows of the weight.
    pub n: u32,
    /// The epilogue, as [`Epilogue::bits`].
    pub epilogue: u32,
}

impl ProductOutput {
    /// Returns whether the product is gated. If so, the weight alternates between eight rows of gate and eight rows of
    /// up, and each activated output of gate is multiplied by its up output.
    #[inline(always)]
    pub fn is_gated(&self) -> bool {
        self.epilogue & GATED != 0
    }

    /// Returns the output's columns for `rows` rows of the weight: half as many if the product is gated.
    #[inline(always)]
    pub fn columns(&self, rows: u32) -> u32 {
        rows >> u32::from(self.is_gated())
    }

    /// Returns the bias of weight rows `row` and `row + 1`, where `row` is even, or zeros past the last row.
    ///
    /// # Safety
    /// `bias` is as declared and not null, and `n` is even.
    #[inline(always)]
    pub unsafe fn bias2<T: Element>(&self, row: u32) -> [f32; 2] {
        if row >= self.n {
            return [0.0; 2];
        }
        // SAFETY: both rows are below `n`, since `row` and `n` are even. For the same reason the pair is aligned.
        unsafe { T::Pair::from_bits(*self.bias.add(row as usize).cast()).to_f32() }
    }

    /// Returns the bias of a weight row, or 0 without a bias.
    ///
    /// # Safety
    /// `row` is below `n`, and the bias is as declared.
    #[inline(always)]
    unsafe fn bias<T: Element>(&self, row: u32) -> f32 {
        if self.bias.is_null() {
            return 0.0;
        }
        // SAFETY: `row` is below `n`, the length of the bias, by this function's contract.
        unsafe { widen::<T>(*self.bias.add(row as usize)) }
    }

    /// Stores one output. `sum` belongs to weight row `row`, and `up` to the row eight further if the product is gated.
    ///
    /// # Safety
    /// `token` is below `m`, and both rows below `n`.
    #[inline(always)]
    pub unsafe fn store_one<T: Element>(&self, token: u32, row: u32, sum: f32, up: f32) {
        // SAFETY: token and rows are within the output and the bias, by this function's contract.
        unsafe {
            let mut value = activate(self.epilogue & ACTIVATION, sum + self.bias::<T>(row));
            let mut column = row;
            if self.is_gated() {
                value *= up + self.bias::<T>(row + GATED_ROWS);
                column = row / (2 * GATED_ROWS) * GATED_ROWS + row % GATED_ROWS;
            }
            self.put::<T>(token as usize * self.stride as usize + column as usize, value);
        }
    }

    /// Stores one finished value, or adds it to the output.
    ///
    /// # Safety
    /// The index is within the output.
    #[inline(always)]
    unsafe fn put<T: Element>(&self, index: usize, value: f32) {
        // SAFETY: the index is within the output, by this function's contract.
        unsafe {
            if self.epilogue & FLOAT != 0 {
                *self.out.cast::<f32>().add(index) = value;
            } else {
                let at = self.out.cast::<u16>().add(index);
                let before = if self.epilogue & ADD != 0 { widen::<T>(*at) } else { 0.0 };
                *at = T::Pair::from_f32([before + value, 0.0]).to_bits() as u16;
            }
        }
    }

    /// Stores a tile of sums. The first sum belongs to token `row` and weight row `column`.
    ///
    /// A thread has the same four columns in each of its rows, so it loads their bias once. If the product is added to
    /// the output, a thread loads `BATCH` rows of the previous output, 8 at most, before it adds to the first.
    ///
    /// # Safety
    /// `THREADS` threads call this together, `thread` is this thread's number, and all their writes to the tile are
    /// visible. If the tile is permuted, these threads cover a multiple of four rows at a time. The output is as
    /// declared.
    #[inline(always)]
    pub unsafe fn store<T: Element, const THREADS: u32, const BATCH: usize>(
        &self,
        staged: Staged,
        thread: u32,
        row: u32,
        column: u32,
    ) {
        // Base-2 logarithm of the four-column groups that the tile has in the output.
        let shift = (staged.columns / 4).trailing_zeros() - u32::from(self.is_gated());
        let four = thread & ((1 << shift) - 1);
        let (from, to, end) = if self.is_gated() {
            (four / 2 * 16 + four % 2 * 4, column / 2 + four * 4, self.n / 2)
        } else {
            (four * 4, column + four * 4, self.n)
        };
        if to >= end {
            return;
        }
        let rows = self.m - row;
        let rows = if rows < staged.rows { rows } else { staged.rows };
        let (mut at, step) = (thread >> shift, THREADS >> shift);
        let whole = to + 4 <= end && self.stride.is_multiple_of(4);
        // SAFETY: rows and columns are checked against the shapes, and groups of four columns are aligned to 16 bytes
        // in the tile.
        unsafe {
            let bias = self.bias4::<T>(column + from);
            let index = |at: u32| (row + at) as usize * self.stride as usize + to as usize;
            // If the tile is permuted, a thread's rows are a multiple of four apart, so these positions are the same in
            // all of them.
            let places = [staged.place(at, from), staged.place(at, from + GATED_ROWS)];
            if self.epilogue & ADD != 0 && whole {
                // The previous output is loaded for several rows at once.
                while at < rows {
                    let mut before = [HalfVector([0; 2]); BATCH];
                    unroll!(i in [0 1 2 3 4 5 6 7] {
                        if i < BATCH && at + i as u32 * step < rows {
                            before[i % BATCH] = *self.out.cast::<u16>().add(index(at + i as u32 * step)).cast();
                        }
                    });
                    unroll!(i in [0 1 2 3 4 5 6 7] {
                        if i < BATCH && at + i as u32 * step < rows {
                            let sums = |at: u32| add(bias, (*staged.at(at, from).cast::<Vector>()).to_f32());
                            let values = add(widen4::<T>(before[i % BATCH]), sums(at + i as u32 * step));
                            self.put4::<T>(index(at + i as u32 * step), values);
                        }
                    });
                    at += BATCH as u32 * step;
                }
                return;
            }
            let up = if self.is_gated() { self.bias4::<T>(column + from + GATED_ROWS) } else { bias };
            let is_plain = self.epilogue & (GATED | ACTIVATION) == 0;
            // Addresses advance by a step, since computing each one from its index takes longer than everything else
            // here.
            let mut from = staged.row(at).cast_const();
            let mut to_index = index(at);
            while at < rows {
                let load = |place: u32| (*from.add(place as usize).cast::<Vector>()).to_f32();
                let mut values = add(bias, load(places[0]));
                if !is_plain {
                    let further = if self.is_gated() { add(up, load(places[1])) } else { [1.0; 4] };
                    unroll!(i in [0 1 2 3] {
                        values[i] = activate(self.epilogue & ACTIVATION, values[i]) * further[i];
                    });
                }
                if whole {
                    self.put4::<T>(to_index, values);
                } else {
                    unroll!(i in [0 1 2 3] {
                        if to + (i as u32) < end {
                            self.put::<T>(to_index + i, values[i]);
                        }
                    });
                }
                at += step;
                from = from.add((step * staged.pitch) as usize);
                to_index += step as usize * self.stride as usize;
            }
        }
    }

    /// Returns the bias of the four weight rows from `row` on, where `row` is a multiple of four.
    ///
    /// # Safety
    /// `bias` is null or as declared.
    #[inline(always)]
    unsafe fn bias4<T: Element>(&self, row: u32) -> [f32; 4] {
        let one = |row: u32| {
            // SAFETY: `row` was just checked against `n`, and the bias is as declared, by this function's contract.
            if row < self.n { unsafe { self.bias::<T>(row) } } else { 0.0 }
        };
        if self.bias.is_null() {
            [0.0; 4]
        } else if row + 4 <= self.n {
            // SAFETY: the four rows were just checked against `n`. They are aligned, since `row` is a multiple of four.
            unsafe { widen4::<T>(*self.bias.add(row as usize).cast()) }
        } else {
            [one(row), one(row + 1), one(row + 2), one(row + 3)]
        }
    }

    /// Stores four finished values in the output's type.
    ///
    /// # Safety
    /// The four elements are within the output, and the index is a multiple of four.
    #[inline(always)]
    unsafe fn put4<T: Element>(&self, index: usize, values: [f32; 4]) {
        // SAFETY: the four elements are within the output, by this function's contract. They are aligned, since their
        // index is a multiple of four.
        unsafe {
            if self.epilogue & FLOAT != 0 {
                *self.out.cast::<f32>().add(index).cast() = Vector::from_f32(values);
            } else {
                let [a, b, c, d] = values;
                let pairs = [T::Pair::from_f32([a, b]).to_bits(), T::Pair::from_f32([c, d]).to_bits()];
                *self.out.cast::<u16>().add(index).cast() = HalfVector(pairs);
            }
        }
    }
}

/// Widens one element to `f32`.
#[inline(always)]
fn widen<T: Element>(bits: u16) -> f32 {
    T::Pair::from_bits(bits.into()).to_f32()[0]
}

/// Widens four elements to `f32`.
#[inline(always)]
pub(crate) fn widen4<T: Element>(HalfVector([low, high]): HalfVector) -> [f32; 4] {
    let ([a, b], [c, d]) = (T::Pair::from_bits(low).to_f32(), T::Pair::from_bits(high).to_f32());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_and_up_alternate_by_eight() {
        assert_eq!([0, 7, 8, 17].map(|row| gated_row(row, false)), [0, 7, 16, 33]);
        assert_eq!([0, 7, 8, 17].map(|row| gated_row(row, true)), [8, 15, 24, 41]);
    }
}
