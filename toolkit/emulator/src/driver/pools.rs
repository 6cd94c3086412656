//! Memory pools. Allocations happen at once, and frees when the stream reaches them, so a pool holds no spare memory. A
//! pool is only a device, its attributes, and a count of the bytes allocated from it.

use super::process::{Handle, handle, parts};
use super::result_code::{Result, ResultCode};
use crate::memory::DeviceAddress;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the place of the context id in the handle of a pool, because a pool belongs to no context.
const POOLS: u32 = i32::MAX as u32;
/// The id of the first pool created by the program. Smaller ids are the default pools of devices.
const FIRST: u32 = 1 << 16;

/// Attributes of a pool, by CUDA's numbers. Attributes 1 to `LAST_SWITCH` control memory reuse and have four bytes.
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
    /// Bytes allocated now, and the peak.
    used: u64,
    used_high: u64,
}

impl Pool {
    fn new(device: i32) -> Self {
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
    /// The pool that each device allocates from, if the program set one.
    current: HashMap<i32, u32>,
    /// The pool and size of each allocation from a pool.
    allocated: BTreeMap<DeviceAddress, (u32, u64)>,
    created: u32,
}

impl Pools {
    /// Finds the pool of a handle. The default pool of a device is created on first use.
    fn find(&mut self, pool: Handle) -> Result<&mut Pool> {
        match parts(pool) {
            (POOLS, id @ ..FIRST) => Ok(self.pools.entry(id).or_insert_with(|| Pool::new(id as i32))),
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

/// The default pool of a device.
pub(super) fn default_of(device: i32) -> Handle {
    handle(POOLS, device as u32)
}

/// The pool that a device's streams allocate from.
pub(super) fn current_of(device: i32) -> Handle {
    with(|all| all.current.get(&device).map_or(default_of(device), |&id| handle(POOLS, id)))
}

/// Sets the pool that a device's streams allocate from.
pub(super) fn set_current(device: i32, pool: Handle) -> Result<()> {
    with(|all| {
        if all.find(pool)?.device != device {
            return Err(ResultCode::InvalidValue);
        }
        all.current.insert(device, parts(pool).1);
        Ok(())
    })
}

/// Creates a pool of device memory.
pub(super) fn create(device: i32) -> Handle {
    with(|all| {
        let id = FIRST + all.created;
        all.created += 1;
        all.pools.insert(id, Pool::new(device));
        handle(POOLS, id)
    })
}

/// Destroys a pool. Memory allocated from it stays allocated.
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

/// Sets an attribute of a pool. The peak byte counts can only be reset, by setting zero.
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

/// Counts an allocation from a pool.
pub(super) fn note_allocated(pool: Handle, pointer: DeviceAddress, bytes: usize) {
    with(|all| {
        let Ok(found) = all.find(pool) else { return };
        found.used += bytes as u64;
        found.used_high = found.used_high.max(found.used);
        all.allocated.insert(pointer, (parts(pool).1, bytes as u64));
    });
}

/// Counts a freed buffer, if it was allocated from a pool.
pub(super) fn note_freed(pointer: DeviceAddress) {
    with(|all| {
        if let Some((id, bytes)) = all.allocated.remove(&pointer)
            && let Some(pool) = all.pools.get_mut(&id)
        {
            pool.used -= bytes;
        }
    });
}

/// The pool that a buffer was allocated from.
pub(super) fn pool_of(pointer: DeviceAddress) -> Option<Handle> {
    with(|all| all.allocated.get(&pointer).map(|&(id, _)| handle(POOLS, id)))
}
