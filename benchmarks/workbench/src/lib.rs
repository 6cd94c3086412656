//! A bench for kernels: problems to run them on, plain references to hold the results against, and the floors that
//! nothing can beat, so that each can be tested, measured and profiled by itself, on a GPU or in the emulator.
//!
//! A [`Case`] is a kernel with a problem. [`measure()`] runs it in several orders of warps and blocks, compares the result
//! with the reference, and says what it cost: on a GPU in time, in the emulator in instructions and memory traffic.

mod case;
pub mod cases;
pub mod coded;
mod gpu;
pub mod group;
mod links;
mod measure;
pub mod number;
pub mod paged;
pub mod paper;
pub mod product;
pub mod quantised;
mod resources;

pub use case::{Case, Prepared, Scale};
pub use emulator::driver::LaunchReport;
pub use emulator::{Counts, LineCounts};
pub use gpu::{Buffer, Gpu};
pub use kernels::floor::Floor;
pub use launch;
pub use links::LinkBytes;
pub use measure::{Cost, Measured, measure};
pub use resources::{Occupancy, ProductLoop, Resources, product_loop, resources};
