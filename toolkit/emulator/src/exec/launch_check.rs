//! Checks of a launch against the kernel's declarations.

use super::launch_config::LaunchConfig;
use crate::arg::Arg;
use crate::entry::Entry;

/// The most shared memory of a block, in bytes. This is the limit of an H100.
const MAX_SHARED: usize = 227 * 1024;
/// The most blocks of a cluster. Only sizes up to eight work on every GPU with clusters.
const MAX_CLUSTER: u32 = 16;

/// Returns the cluster shape of a launch: the shape that the kernel declares, or else the shape that the launch
/// requests.
pub(crate) fn cluster_of(entry: &Entry, asked: Option<[u32; 3]>) -> [u32; 3] {
    entry.bounds().required_cluster.or(asked).unwrap_or([1; 3])
}

/// Checks the shape of a launch's clusters.
fn check_cluster(entry: &Entry, grid: [u32; 3], asked: Option<[u32; 3]>) -> Result<(), String> {
    let bounds = entry.bounds();
    let cluster = cluster_of(entry, asked);
    if let Some(asked) = asked.filter(|&asked| asked != cluster) {
        return Err(format!("clusters of {asked:?} blocks, but the kernel requires {cluster:?}"));
    }
    let blocks = cluster.iter().map(|&n| u64::from(n)).product::<u64>();
    let most = bounds.max_cluster.unwrap_or(MAX_CLUSTER).min(MAX_CLUSTER);
    if blocks == 0 || blocks > u64::from(most) {
        return Err(format!("clusters of {blocks} blocks, but at most {most} are allowed"));
    }
    if (0..3).any(|axis| !grid[axis].is_multiple_of(cluster[axis])) {
        return Err(format!("a grid of {grid:?} blocks is not a multiple of clusters of {cluster:?}"));
    }
    if bounds.explicit_cluster && asked.is_none() && bounds.required_cluster.is_none() {
        return Err("the kernel must be launched in clusters of a given shape".into());
    }
    Ok(())
}

/// Checks a launch against the kernel's declarations, and returns the bytes of its parameters.
pub(crate) fn check_launch(
    entry: &Entry,
    config: LaunchConfig,
    asked_cluster: Option<[u32; 3]>,
    args: &[Arg],
) -> Result<Vec<u8>, String> {
    let LaunchConfig { grid, block, .. } = config;
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
        return Err(format!("{threads} threads, but the kernel declares at most {bound}"));
    }
    if let Some(required) = entry.bounds().required_threads
        && required != block
    {
        return Err(format!("block {block:?}, but the kernel requires {required:?}"));
    }
    check_cluster(entry, grid, asked_cluster)?;
    let shared = config.shared(entry.static_shared());
    if shared > MAX_SHARED {
        return Err(format!("{shared} bytes of shared memory, but at most {MAX_SHARED} are allowed"));
    }
    if args.len() != entry.parameters().len() {
        return Err(format!("{} arguments for {} parameters", args.len(), entry.parameters().len()));
    }
    let mut bytes = vec![0; entry.parameters().last().map_or(0, |last| last.offset + last.size)];
    for (index, (arg, parameter)) in args.iter().zip(entry.parameters()).enumerate() {
        let value = arg.bytes();
        if value.len() != parameter.size {
            return Err(format!(
                "argument {index} has {} bytes, but its parameter has {}",
                value.len(),
                parameter.size
            ));
        }
        bytes[parameter.offset..parameter.offset + parameter.size].copy_from_slice(&value);
    }
    Ok(bytes)
}
