//! The check of a launch against what the kernel declares.

use super::launch_config::LaunchConfig;
use crate::arg::Arg;
use crate::entry::Entry;

/// The most shared memory of a block: that of an H100.
const MAX_SHARED: usize = 227 * 1024;

/// Checks a launch against the kernel's declaration and gives the block of its parameters.
pub(crate) fn check_launch(
    entry: &Entry,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
    args: &[Arg],
) -> Result<Vec<u8>, String> {
    if grid.contains(&0) || block.contains(&0) {
        return Err(format!("grid {grid:?} and block {block:?} must not be empty"));
    }
    if grid[1] > 65_535 || grid[2] > 65_535 || grid[0] > i32::MAX as u32 {
        return Err(format!("grid {grid:?} is too large"));
    }
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    if threads > 1024 || block[2] > 64 {
        return Err(format!("block {block:?} is too large"));
    }
    if let Some(bound) = entry.bounds().max_threads.map(|bound| bound.iter().map(|&n| u64::from(n)).product::<u64>())
        && threads > bound
    {
        return Err(format!("{threads} threads, of at most {bound} that the kernel declares"));
    }
    if let Some(required) = entry.bounds().required_threads
        && required != block
    {
        return Err(format!("block {block:?}, where the kernel requires {required:?}"));
    }
    let shared = LaunchConfig { grid, block, dynamic_shared }.shared(entry.static_shared());
    if shared > MAX_SHARED {
        return Err(format!("{shared} bytes of shared memory, of at most {MAX_SHARED}"));
    }
    if args.len() != entry.parameters().len() {
        return Err(format!("{} arguments for {} parameters", args.len(), entry.parameters().len()));
    }
    let mut bytes = vec![0; entry.parameters().last().map_or(0, |last| last.offset + last.size)];
    for (index, (arg, parameter)) in args.iter().zip(entry.parameters()).enumerate() {
        let value = arg.bytes();
        if value.len() != parameter.size {
            return Err(format!("argument {index} has {} bytes, its parameter has {}", value.len(), parameter.size));
        }
        bytes[parameter.offset..parameter.offset + parameter.size].copy_from_slice(&value);
    }
    Ok(bytes)
}
