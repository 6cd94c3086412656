//! A bench for single kernels. It has problems to run them on, plain references for the results, and floors that no
//! kernel can beat. Each kernel can be tested, measured and profiled separately, on a GPU or in the emulator.
//!
//! A [`Case`] is a kernel with a problem. [`measure()`] runs it in several orders of warps and blocks, compares the
//! result with the reference, and reports the cost: the time on a GPU, or instructions and memory traffic in the
//! emulator.

mod case;
pub mod cases;
pub mod coded;
pub mod experts;
mod gpu;
pub mod group;
mod links;
mod measure;
pub mod number;
pub mod paged;
pub mod paper;
pub mod product;
pub mod quantised;
pub mod recurrent;

pub use case::{Case, Prepared, Scale};
pub use emulator::driver::LaunchReport;
pub use emulator::{Counts, LineCounts};
pub use gpu::{Buffer, Gpu};
pub use kernels::floor::Floor;
pub use launch;
pub use links::LinkBytes;
pub use measure::{Cost, Measured, measure};
pub use resources::{Occupancy, ProductLoop, Resources, product_loop, resources};
