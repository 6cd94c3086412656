//! Occupancy: how many blocks of a kernel fit a multiprocessor, and the block size that fills it best. Registers do not
//! count, because PTX does not say how many a kernel needs.

use super::argument::{Out, array};
use super::functions::functions;
use super::launch_configuration::LaunchConfiguration;
use crate::driver::libraries::with_function;
use crate::driver::options::{
    BLOCKS_PER_MULTIPROCESSOR, DeviceOptions, SHARED_RESERVED, THREADS_PER_BLOCK, THREADS_PER_MULTIPROCESSOR,
};
use crate::driver::process::Handle;
use crate::driver::result_code::{Result, ResultCode};
use crate::entry::Entry;

/// A callback that returns the bytes of dynamic shared memory for a block of the given number of threads.
type SharedOfBlock = unsafe extern "C" fn(i32) -> usize;

/// Threads per warp.
const WARP: u32 = 32;
/// The cluster size in blocks that every device with clusters supports.
const CLUSTER: i32 = 8;

/// The number of blocks of a kernel that fit a multiprocessor.
pub(super) fn blocks_that_fit(options: &DeviceOptions, entry: &Entry, threads: u32, dynamic_shared: usize) -> u32 {
    let by_shared = options.shared_per_multiprocessor() / (entry.static_shared() + dynamic_shared + SHARED_RESERVED);
    let by_threads = THREADS_PER_MULTIPROCESSOR / threads.clamp(1, THREADS_PER_MULTIPROCESSOR).next_multiple_of(WARP);
    by_threads.min(BLOCKS_PER_MULTIPROCESSOR).min(by_shared as u32)
}

fn blocks_of(function: Handle, threads: i32, dynamic_shared: usize) -> Result<u32> {
    let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(ResultCode::InvalidValue)?;
    with_function(function, |context, function| {
        let entry = context.function(function)?.entry()?;
        let (bound, static_shared) = (most_threads(entry), entry.static_shared());
        if threads > bound || static_shared + dynamic_shared > context.device_options.shared_opt_in() {
            return Ok(0);
        }
        let options = context.device_options.clone();
        Ok(blocks_that_fit(&options, context.function(function)?.entry()?, threads, dynamic_shared))
    })
}

fn most_threads(entry: &Entry) -> u32 {
    entry.bounds().max_threads.map_or(THREADS_PER_BLOCK, |bound| bound.iter().product())
}

/// Returns the size of the grid that fills the device, and the block size that fills a multiprocessor best. Of equally
/// good block sizes, takes the largest.
fn best_block(
    function: Handle,
    shared_of: Option<SharedOfBlock>,
    dynamic_shared: usize,
    limit: i32,
) -> Result<(i32, i32)> {
    let (most, multiprocessors) = with_function(function, |context, function| {
        let multiprocessors = context.device_options.multiprocessors;
        Ok((most_threads(context.function(function)?.entry()?), multiprocessors))
    })?;
    let limit = u32::try_from(limit).ok().filter(|&limit| limit > 0).unwrap_or(THREADS_PER_BLOCK).min(most);
    let mut best = (0, 0, 0); // total threads, blocks, threads per block
    for threads in (1..=limit.div_ceil(WARP)).rev().map(|warps| (warps * WARP).min(limit)) {
        let shared = match shared_of {
            // SAFETY: the caller guarantees that the callback can be called with any number of threads.
            Some(shared_of) => unsafe { shared_of(threads as i32) },
            None => dynamic_shared,
        };
        let blocks = blocks_of(function, threads as i32, shared)?;
        if blocks * threads > best.0 {
            best = (blocks * threads, blocks, threads);
        }
    }
    Ok(((best.1 * multiprocessors) as i32, best.2 as i32))
}

functions! { occupancy_functions($)
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>, function: Handle, threads: i32, dynamic_shared: usize,
    ) {
        blocks.put(blocks_of(function, threads, dynamic_shared)? as i32)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: Handle, threads: i32, dynamic_shared: usize, _flags: u32,
    ) {
        blocks.put(blocks_of(function, threads, dynamic_shared)? as i32)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: Handle, shared_of: Option<SharedOfBlock>, dynamic_shared: usize,
        limit: i32,
    ) {
        let (blocks, threads) = best_block(function, shared_of, dynamic_shared, limit)?;
        grid.put(blocks)?;
        block.put(threads)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: Handle, shared_of: Option<SharedOfBlock>, dynamic_shared: usize,
        limit: i32, _flags: u32,
    ) {
        let (blocks, threads) = best_block(function, shared_of, dynamic_shared, limit)?;
        grid.put(blocks)?;
        block.put(threads)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: Handle, blocks: i32, threads: i32) {
        let blocks = usize::try_from(blocks).ok().filter(|&blocks| blocks > 0).ok_or(ResultCode::InvalidValue)?;
        if blocks_of(function, threads, 0)? < blocks as u32 {
            return Err(ResultCode::InvalidValue);
        }
        bytes.put(with_function(function, |context, function| {
            let (room, most) = (context.device_options.shared_per_multiprocessor(), context.device_options.shared_opt_in());
            let static_shared = context.function(function)?.entry()?.static_shared();
            Ok((room / blocks).saturating_sub(static_shared + SHARED_RESERVED).min(most - static_shared))
        })?)
    }

    fn cuOccupancyMaxPotentialClusterSize(blocks: Out<i32>, function: Handle, config: *const LaunchConfiguration) {
        // SAFETY: the caller passes null or a configuration.
        unsafe { array(config, 1) }?;
        let has_clusters = with_function(function, |context, _| Ok(context.device_options.capability >= (9, 0)))?;
        blocks.put(if has_clusters { CLUSTER } else { 1 })
    }

    fn cuOccupancyMaxActiveClusters(clusters: Out<i32>, function: Handle, config: *const LaunchConfiguration) {
        // SAFETY: the caller passes null or a configuration.
        let [config] = unsafe { array(config, 1) }?[..] else { return Err(ResultCode::InvalidValue) };
        // SAFETY: the caller passes as many attributes as the configuration says.
        let shape = unsafe { config.shape() }?;
        let blocks = shape.cluster.map_or(1, |cluster| cluster.iter().fold(1, |all, &n| n.saturating_mul(all))).max(1);
        let threads = shape.block.iter().fold(1u32, |all, &n| all.saturating_mul(n));
        let resident = blocks_of(function, i32::try_from(threads).unwrap_or(i32::MAX), shape.dynamic_shared)?;
        let multiprocessors = with_function(function, |context, _| Ok(context.device_options.multiprocessors))?;
        clusters.put((resident * multiprocessors / blocks) as i32)
    }
}
