//! The list of all functions except the lookup functions themselves.

use super::{
    contexts, copies, devices, fills, graphs, kernels, launches, libraries, links, memory, modules, occupancy,
    pointers, pools, streams, tensors,
};
use std::ffi::c_void;

/// Returns the address of a driver function by its exact name, or `None` if the emulator does not have it.
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
    files.into_iter().flatten().find(|(other, _)| *other == name).map(|&(_, address)| address)
}

/// Passes the names of all functions to a macro, one file at a time, for a library that exports them.
#[doc(hidden)]
#[macro_export]
macro_rules! driver_functions {
    ($export:ident) => {
        $crate::context_functions!($export);
        $crate::device_functions!($export);
        $crate::module_functions!($export);
        $crate::kernel_functions!($export);
        $crate::launch_functions!($export);
        $crate::occupancy_functions!($export);
        $crate::library_functions!($export);
        $crate::link_functions!($export);
        $crate::memory_functions!($export);
        $crate::copy_functions!($export);
        $crate::fill_functions!($export);
        $crate::pointer_functions!($export);
        $crate::pool_functions!($export);
        $crate::stream_functions!($export);
        $crate::graph_functions!($export);
        $crate::tensor_functions!($export);
        $crate::entry_point_functions!($export);
    };
}
