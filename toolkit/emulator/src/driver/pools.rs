//! Memory pools. Memory is allocated when it is asked for and freed when the stream comes to it, so that a pool keeps nothing
//! back: it is a device, attributes, and a count of the bytes that were allocated from it.

use super::process::{Handle, handle, parts};
use super::result_code::{Result, ResultCode};
use crate::memory::DeviceAddress;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What stands in the place of a context's number in the handle of a pool, which belongs to no context.
const POOLS: u32 = i32::MAX as u32;
/// The number of the first pool that is not the default one of a device.
const FIRST: u32 = 1 << 16;

/// Attributes of a pool, by CUDA's numbers: those up to `LAST_SWITCH` say from where memory may be reused and have four bytes.
pub(super) const LAST_SWITCH: u32 = 3;
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

/// A pool of device memory.
struct Pool {
    device: i32,
    switches: [u64; 3],
    release_threshold: u64,
    /// Bytes that are allocated, and the most that were.
    used: u64,
    used_high: u64,
}

impl Pool {
    fn of(device: i32) -> Self {
        Self { device, switches: [1; 3], release_threshold: 0, used: 0, used_high: 0 }
    }

    fn attribute(&mut self, attribute: u32) -> Result<&mut u64> {
        Ok(match attribute {
            1..=LAST_SWITCH => &mut self.switches[attribute as usize - 1],
            RELEASE_THRESHOLD => &mut self.release_threshold,
            RESERVED | USED => &mut self.used,
            RESERVED_HIGH | USED_HIGH => &mut self.used_high,
            _ => return Err(ResultCode::InvalidValue),
        })
    }
}

#[derive(Default)]
struct Pools {
    pools: BTreeMap<u32, Pool>,
    /// The pools that devices use where they were given one.
    current: HashMap<i32, u32>,
    /// The pool and the size of what was allocated from pools.
    allocated: BTreeMap<DeviceAddress, (u32, u64)>,
    created: u32,
}

impl Pools {
    /// The pool of a handle. The default pools of devices come to be when they are asked for.
    fn find(&mut self, pool: Handle) -> Result<&mut Pool> {
        match parts(pool) {
            (POOLS, id @ ..FIRST) => Ok(self.pools.entry(id).or_insert_with(|| Pool::of(id as i32))),
            (POOLS, id) => self.pools.get_mut(&id).ok_or(ResultCode::InvalidHandle),
            _ => Err(ResultCode::InvalidHandle),
        }
    }
}

static ALL: Mutex<Option<Pools>> = Mutex::new(None);

fn with<T>(action: impl FnOnce(&mut Pools) -> T) -> T {
    let mut all: MutexGuard<'_, Option<Pools>> = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    action(all.get_or_insert_default())
}

/// The pool that a device has from the start.
pub(super) fn default_of(device: i32) -> Handle {
    handle(POOLS, device as u32)
}

/// The pool from which a device's streams allocate.
pub(super) fn current_of(device: i32) -> Handle {
    with(|all| all.current.get(&device).map_or(default_of(device), |&id| handle(POOLS, id)))
}

/// Has a device's streams allocate from a pool.
pub(super) fn set_current(device: i32, pool: Handle) -> Result<()> {
    with(|all| {
        if all.find(pool)?.device != device {
            return Err(ResultCode::InvalidValue);
        }
        all.current.insert(device, parts(pool).1);
        Ok(())
    })
}

/// Makes a pool of a device's memory.
pub(super) fn create(device: i32) -> Handle {
    with(|all| {
        let id = FIRST + all.created;
        all.created += 1;
        all.pools.insert(id, Pool::of(device));
        handle(POOLS, id)
    })
}

/// Forgets a pool. What was allocated from it stays.
pub(super) fn destroy(pool: Handle) -> Result<()> {
    with(|all| {
        let id = parts(pool).1;
        all.find(pool)?;
        if id < FIRST {
            return Err(ResultCode::InvalidValue);
        }
        all.current.retain(|_, current| *current != id);
        all.pools.remove(&id);
        Ok(())
    })
}

/// The device of a pool.
pub(super) fn device_of(pool: Handle) -> Result<i32> {
    with(|all| Ok(all.find(pool)?.device))
}

/// An attribute of a pool.
pub(super) fn attribute(pool: Handle, attribute: u32) -> Result<u64> {
    with(|all| all.find(pool)?.attribute(attribute).copied())
}

/// Sets an attribute of a pool. What counts bytes can only be set back.
pub(super) fn set_attribute(pool: Handle, attribute: u32, value: u64) -> Result<()> {
    with(|all| {
        let pool = all.find(pool)?;
        match (attribute, value) {
            (RESERVED | USED, _) => return Err(ResultCode::InvalidValue),
            (RESERVED_HIGH | USED_HIGH, 0) => pool.used_high = pool.used,
            (RESERVED_HIGH | USED_HIGH, _) => return Err(ResultCode::InvalidValue),
            _ => *pool.attribute(attribute)? = value,
        }
        Ok(())
    })
}

/// Counts what was allocated from a pool.
pub(super) fn note_allocated(pool: Handle, pointer: DeviceAddress, bytes: usize) {
    with(|all| {
        let Ok(found) = all.find(pool) else { return };
        found.used += bytes as u64;
        found.used_high = found.used_high.max(found.used);
        all.allocated.insert(pointer, (parts(pool).1, bytes as u64));
    });
}

/// Counts that a buffer was freed, if it is one of a pool.
pub(super) fn note_freed(pointer: DeviceAddress) {
    with(|all| {
        if let Some((id, bytes)) = all.allocated.remove(&pointer)
            && let Some(pool) = all.pools.get_mut(&id)
        {
            pool.used -= bytes;
        }
    });
}

/// The pool from which a buffer was allocated.
pub(super) fn pool_of(pointer: DeviceAddress) -> Option<Handle> {
    with(|all| all.allocated.get(&pointer).map(|&(id, _)| handle(POOLS, id)))
}
