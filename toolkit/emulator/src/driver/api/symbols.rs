//! The list of all functions but those by which programs look for functions.

use super::{
    contexts, copies, devices, fills, graphs, kernels, launches, libraries, links, memory, modules, occupancy,
    pointers, pools, streams, tensors,
};
use std::ffi::c_void;

/// The address of the function of this name, if the emulator has it.
pub(super) fn symbol(name: &str) -> Option<*const c_void> {
    let files = [
        contexts::FUNCTIONS,
        devices::FUNCTIONS,
        modules::FUNCTIONS,
        kernels::FUNCTIONS,
        launches::FUNCTIONS,
        occupancy::FUNCTIONS,
        libraries::FUNCTIONS,
        links::FUNCTIONS,
        memory::FUNCTIONS,
        copies::FUNCTIONS,
        fills::FUNCTIONS,
        pointers::FUNCTIONS,
        pools::FUNCTIONS,
        streams::FUNCTIONS,
        graphs::FUNCTIONS,
        tensors::FUNCTIONS,
    ];
    files.into_iter().flatten().find(|(known, _)| *known == name).map(|&(_, address)| address)
}
