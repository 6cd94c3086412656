//! Functions through which programs look up driver functions by unversioned name.

use super::argument::{Out, TextArgument};
use super::functions::functions;
use super::symbols;
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::c_void;

/// Function versions that are newer than the first CUDA version with the name. A version with changed arguments is
/// returned only to callers that ask for a CUDA version that has it.
const SINCE: &[(&str, i32)] = &[
    ("cuCtxCreate_v3", 11_040),
    ("cuCtxCreate_v4", 12_050),
    ("cuEventElapsedTime_v2", 12_080),
    ("cuGetProcAddress_v2", 12_000),
    ("cuGraphExecUpdate_v2", 12_000),
    ("cuGraphInstantiateWithFlags", 12_000),
    ("cuMemAdvise_v2", 12_020),
    ("cuMemPrefetchAsync_v2", 12_020),
    ("cuStreamGetCaptureInfo_v2", 11_030),
];
/// Functions that a later CUDA version maps an unversioned name to.
const RENAMED: &[(&str, &str)] = &[("cuGraphInstantiate", "cuGraphInstantiateWithFlags")];
/// The highest version suffix that is tried.
const VERSIONS: u32 = 4;

/// Lookup results, by CUDA's numbers.
const FOUND: u32 = 0;
const MISSING: u32 = 1;
const NEWER: u32 = 2;

/// Returns the address of a driver function by its exact name, or `None` if the emulator does not have it.
pub(in crate::driver) fn symbol(name: &str) -> Option<*const c_void> {
    let own = || FUNCTIONS.iter().find(|(other, _)| *other == name).map(|&(_, address)| address);
    symbols::symbol(name).or_else(own)
}

/// Finds the newest function for a name that a CUDA version has.
fn find(name: &str, version: i32) -> std::result::Result<*const c_void, u32> {
    let since = |name: &str| SINCE.iter().find(|(other, _)| *other == name).map_or(0, |(_, since)| *since);
    let versioned = (2..=VERSIONS).rev().map(|number| format!("{name}_v{number}"));
    let renamed = RENAMED.iter().filter(|(old, _)| *old == name).map(|(_, new)| (*new).to_owned());
    let candidates = renamed.chain(versioned).chain([name.to_owned()]);
    let existing: Vec<(String, *const c_void)> =
        candidates.filter_map(|name| symbol(&name).map(|address| (name, address))).collect();
    let fitting = existing.iter().find(|(name, _)| since(name) <= version);
    fitting.map(|(_, address)| *address).ok_or(if existing.is_empty() { MISSING } else { NEWER })
}

fn put(name: TextArgument, function: Out<*const c_void>, version: i32, status: Option<Out<u32>>) -> Result<()> {
    let found = find(name.get()?, version);
    function.put(found.unwrap_or(std::ptr::null()))?;
    if let Some(status) = status.filter(|status| !status.is_null()) {
        status.put(found.err().unwrap_or(FOUND))?;
    }
    found.map(|_| ()).map_err(|_| ResultCode::NotFound)
}

functions! { entry_point_functions($)
    fn cuGetProcAddress(name: TextArgument, function: Out<*const c_void>, version: i32, _flags: u64) {
        put(name, function, version, None)
    }

    fn cuGetProcAddress_v2(
        name: TextArgument, function: Out<*const c_void>, version: i32, _flags: u64, status: Out<u32>,
    ) {
        put(name, function, version, Some(status))
    }

    fn cuGetExportTable(table: Out<*const c_void>, _id: *const [u8; 16]) {
        // These tables serve NVIDIA's own runtime and are not documented.
        table.put(std::ptr::null())?;
        Err(ResultCode::NotFound)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    #[test]
    fn an_unversioned_name_means_the_newest_version_the_caller_knows() {
        let symbol = |name| symbol(name).unwrap();
        assert_eq!(find("cuMemAlloc", 12_000), Ok(symbol("cuMemAlloc_v2")));
        assert_eq!(find("cuInit", 2_000), Ok(symbol("cuInit")));
        assert_eq!(find("cuCtxCreate", 11_030), Ok(symbol("cuCtxCreate_v2")));
        assert_eq!(find("cuCtxCreate", 12_000), Ok(symbol("cuCtxCreate_v3")));
        assert_eq!(find("cuCtxCreate", 13_000), Ok(symbol("cuCtxCreate_v4")));
        assert_eq!(find("cuGraphInstantiate", 11_040), Ok(symbol("cuGraphInstantiate_v2")));
        assert_eq!(find("cuGraphInstantiate", 12_000), Ok(symbol("cuGraphInstantiateWithFlags")));
        assert_eq!(find("cuTexObjectCreate", 12_000), Err(MISSING));
    }

    #[test]
    fn every_listed_version_exists() {
        for name in SINCE.iter().map(|(name, _)| name) {
            assert!(symbol(name).is_some(), "{name}");
        }
    }
}
