//! The functions of libcuda, by their names and with their signatures.
//!
//! Each is a thin shell over [`DriverContext`](super::context::DriverContext) and [`process`](super::process).

mod argument;
mod contexts;
mod functions;
mod graphs;
mod memory;
mod modules;
mod streams;
mod tensors;

use std::ffi::c_void;

/// The address of the function of this name, if the emulator has it.
pub(super) fn symbol(name: &str) -> Option<*const c_void> {
    let files = [
        contexts::FUNCTIONS,
        modules::FUNCTIONS,
        memory::FUNCTIONS,
        streams::FUNCTIONS,
        graphs::FUNCTIONS,
        tensors::FUNCTIONS,
    ];
    files.into_iter().flatten().find(|(known, _)| *known == name).map(|&(_, address)| address)
}
