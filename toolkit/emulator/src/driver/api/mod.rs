//! The libcuda functions, with libcuda's names and signatures.
//!
//! Each function is a thin layer over [`DriverContext`](super::context::DriverContext) and [`process`](super::process).

mod argument;
mod contexts;
mod copies;
mod devices;
mod entry_points;
mod fills;
mod functions;
mod graphs;
mod kernels;
mod launch_configuration;
mod launches;
mod libraries;
mod links;
mod memory;
mod modules;
mod occupancy;
mod pointers;
mod pools;
mod streams;
mod symbols;
mod tensors;

pub(super) use entry_points::symbol;

/// Every function, for a library that exports them.
pub mod exported {
    pub use super::contexts::*;
    pub use super::copies::*;
    pub use super::devices::*;
    pub use super::entry_points::*;
    pub use super::fills::*;
    pub use super::graphs::*;
    pub use super::kernels::*;
    pub use super::launches::*;
    pub use super::libraries::*;
    pub use super::links::*;
    pub use super::memory::*;
    pub use super::modules::*;
    pub use super::occupancy::*;
    pub use super::pointers::*;
    pub use super::pools::*;
    pub use super::streams::*;
    pub use super::tensors::*;
}
