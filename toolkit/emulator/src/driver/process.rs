//! State of the whole process: all contexts and their groups.

use super::context::{DEFAULT_STREAM, DriverContext};
use super::current;
use super::group::Group;
use super::host_call;
use super::options::DeviceOptions;
use super::queue::StreamId;
use super::result_code::{Result, ResultCode};
use super::session::Session;
use crate::launch_options::LaunchOptions;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

/// A handle that the caller holds for a stream, module, event or other object. It combines the context's id and the
/// object's id in that context. It is never dereferenced, so using a stale handle returns an error and cannot touch
/// memory.
pub(super) type Handle = *mut c_void;

/// Handles that mean the default stream: null, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`. The per-thread default
/// stream is the same stream as the others here.
const DEFAULT_STREAMS: [usize; 3] = [0, 1, 2];

#[derive(Default)]
struct Process {
    initialised: bool,
    options: DeviceOptions,
    /// The launch options of new contexts.
    launches: LaunchOptions,
    /// The group of each context, by context id.
    groups: HashMap<u32, Arc<Group>>,
    /// The primary context and its retain count, by device.
    primary: HashMap<i32, (u32, usize)>,
    /// The flags of primary contexts, by device.
    primary_flags: HashMap<i32, u32>,
    next: u32,
}

static PROCESS: LazyLock<Mutex<Process>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a handle from a context's id and an object's id.
pub(super) fn handle(context: u32, id: u32) -> Handle {
    std::ptr::without_provenance_mut((context as usize) << 32 | id as usize)
}

/// Splits a handle into the context's id and the object's id.
pub(super) fn parts(handle: Handle) -> (u32, u32) {
    ((handle.addr() >> 32) as u32, handle.addr() as u32)
}

static FIRST: OnceLock<fn() -> bool> = OnceLock::new();

/// Registers the function that the first `cuInit` calls. `cuInit` fails if it returns false.
pub(super) fn initialise_with(first: fn() -> bool) {
    let _ = FIRST.set(first);
}

pub(super) fn initialise() -> Result<()> {
    if !lock(&PROCESS).initialised && FIRST.get().is_some_and(|first| !first()) {
        return Err(ResultCode::Unknown);
    }
    lock(&PROCESS).initialised = true;
    Ok(())
}

/// Returns the properties of a device. Fails before the driver is initialised.
pub(super) fn device(ordinal: i32) -> Result<DeviceOptions> {
    let process = lock(&PROCESS);
    match usize::try_from(ordinal) {
        _ if !process.initialised => Err(ResultCode::NotInitialized),
        Ok(ordinal) if ordinal < process.options.devices => Ok(process.options.clone()),
        _ => Err(ResultCode::InvalidDevice),
    }
}

/// Returns the device properties that new contexts get.
pub(super) fn configured() -> DeviceOptions {
    lock(&PROCESS).options.clone()
}

/// Sets the launch options of contexts created from now on.
pub(super) fn configure_launches(options: LaunchOptions) {
    lock(&PROCESS).launches = options;
}

/// Sets the device properties of contexts created from now on.
pub(super) fn configure(options: DeviceOptions) {
    lock(&PROCESS).options = options;
}

impl Process {
    fn create(&mut self, ordinal: i32) -> u32 {
        self.next += 1;
        let context = DriverContext::new(self.options.clone(), self.launches.clone(), ordinal);
        self.groups.insert(self.next, Group::with_context(self.next, context));
        self.next
    }

    /// Merges the groups of two contexts.
    fn join(&mut self, id: u32, peer: u32) -> Result<()> {
        let group = |id: u32| self.groups.get(&id).cloned().ok_or(ResultCode::InvalidContext);
        let (own, other) = (group(id)?, group(peer)?);
        if !Arc::ptr_eq(&own, &other) {
            for moved in own.absorb(&other)? {
                self.groups.insert(moved, Arc::clone(&own));
            }
        }
        Ok(())
    }
}

/// Creates a context without making it current.
pub(super) fn create(ordinal: i32) -> Result<u32> {
    device(ordinal)?;
    Ok(lock(&PROCESS).create(ordinal))
}

pub(super) fn destroy(id: u32) -> Result<()> {
    current::change(|stack| stack.pop_if(|current| *current == id));
    let group = lock(&PROCESS).groups.remove(&id).ok_or(ResultCode::InvalidContext)?;
    group.remove(id);
    Ok(())
}

pub(super) fn retain_primary(ordinal: i32) -> Result<u32> {
    device(ordinal)?;
    let mut process = lock(&PROCESS);
    let (id, count) = match process.primary.get(&ordinal) {
        Some(&primary) => primary,
        None => (process.create(ordinal), 0),
    };
    process.primary.insert(ordinal, (id, count + 1));
    Ok(id)
}

/// Returns the flags of a device's primary context, and whether the context exists.
pub(super) fn primary_state(ordinal: i32) -> Result<(u32, bool)> {
    device(ordinal)?;
    let process = lock(&PROCESS);
    Ok((process.primary_flags.get(&ordinal).copied().unwrap_or(0), process.primary.contains_key(&ordinal)))
}

/// Sets the flags of a device's primary context.
pub(super) fn set_primary_flags(ordinal: i32, flags: u32) -> Result<()> {
    device(ordinal)?;
    lock(&PROCESS).primary_flags.insert(ordinal, flags);
    Ok(())
}

/// Releases one reference to the primary context, or resets it `entirely`. The context is destroyed with its last
/// reference.
pub(super) fn release_primary(ordinal: i32, entirely: bool) -> Result<()> {
    device(ordinal)?;
    let released = {
        let mut process = lock(&PROCESS);
        match process.primary.get_mut(&ordinal) {
            Some((_, count)) if *count > 1 && !entirely => {
                *count -= 1;
                None
            }
            Some(_) => process.primary.remove(&ordinal),
            None if entirely => None,
            None => return Err(ResultCode::InvalidContext),
        }
    };
    released.map_or(Ok(()), |(id, _)| destroy(id))
}

pub(super) fn push(id: u32) -> Result<()> {
    find(id)?;
    current::change(|stack| stack.push(id));
    Ok(())
}

pub(super) fn pop() -> Result<u32> {
    current::change(Vec::pop).ok_or(ResultCode::InvalidContext)
}

/// Replaces the top of the calling thread's context stack.
pub(super) fn set_current(id: Option<u32>) -> Result<()> {
    id.map(find).transpose()?;
    current::change(|stack| {
        stack.pop();
        stack.extend(id);
    });
    Ok(())
}

/// Gives the current context access to the memory of a peer.
pub(super) fn enable_peer(peer: u32) -> Result<()> {
    let id = current::get().ok_or(ResultCode::InvalidContext)?;
    let has_access = with_current(|context| Ok(context.device_options.peer_access))?;
    if id == peer || !has_access {
        return Err(ResultCode::PeerAccessUnsupported);
    }
    lock(&PROCESS).join(id, peer)?;
    set_peer(peer, true)
}

/// Merges the current context's group with that of another context, because the two share memory.
pub(super) fn join_current(other: u32) -> Result<()> {
    join(current::get().ok_or(ResultCode::InvalidContext)?, other)
}

/// Merges the groups of two contexts.
pub(super) fn join(id: u32, other: u32) -> Result<()> {
    find(id)?;
    lock(&PROCESS).join(id, other)
}

/// Reverses [`enable_peer`].
pub(super) fn disable_peer(peer: u32) -> Result<()> {
    let id = current::get().ok_or(ResultCode::InvalidContext)?;
    let (own, other) = (find(id)?, find(peer).map_err(|_| ResultCode::InvalidContext)?);
    if Arc::ptr_eq(&own, &other) { set_peer(peer, false) } else { Err(ResultCode::PeerAccessNotEnabled) }
}

fn set_peer(peer: u32, reach: bool) -> Result<()> {
    with_current(|context| {
        context.healthy()?;
        let own = context.member;
        let other = context.state().contexts.get(&peer).ok_or(ResultCode::InvalidContext)?;
        if other.ordinal == context.ordinal {
            return Err(ResultCode::PeerAccessUnsupported);
        }
        let other = other.member;
        let memory = &mut context.state_mut().device.memory;
        match (memory.reaches(own, other), reach) {
            (true, true) => Err(ResultCode::PeerAccessAlreadyEnabled),
            (false, false) => Err(ResultCode::PeerAccessNotEnabled),
            _ => {
                memory.set_reach(own, other, reach);
                Ok(())
            }
        }
    })
}

fn find(id: u32) -> Result<Arc<Group>> {
    if host_call::is_running() {
        return Err(ResultCode::NotPermitted);
    }
    let process = lock(&PROCESS);
    if !process.initialised {
        return Err(ResultCode::NotInitialized);
    }
    process.groups.get(&id).cloned().ok_or(ResultCode::InvalidContext)
}

/// Runs an action in a context.
fn with_context<T>(id: u32, action: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Result<T> {
    let (mut action, mut result) = (Some(action), Err(ResultCode::Unknown));
    in_context(id, &mut |session| {
        if let Some(action) = action.take() {
            result = action(session);
        }
    })?;
    result
}

/// [`with_context`] for actions that store their result. It is compiled once for all actions.
fn in_context(id: u32, action: &mut dyn FnMut(&mut Session<'_>)) -> Result<()> {
    loop {
        let group = find(id)?;
        // The context may move to another group between `find` and the lock, so look again.
        if let Some(mut session) = Session::new(&group, id) {
            action(&mut session);
            return Ok(());
        }
    }
}

/// Runs an action in the context with this id.
pub(super) fn with_id<T>(id: u32, action: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Result<T> {
    with_context(id, action)
}

/// Returns the ids of all contexts, with the calling thread's current one first.
pub(super) fn all() -> Vec<u32> {
    let mut ids: Vec<u32> = lock(&PROCESS).groups.keys().copied().collect();
    let own = current::get();
    ids.sort_by_key(|&id| (Some(id) != own, id));
    ids
}

/// Runs an action in the current context.
pub(super) fn with_current<T>(action: impl FnOnce(&mut Session<'_>) -> Result<T>) -> Result<T> {
    with_context(current::get().ok_or(ResultCode::InvalidContext)?, action)
}

/// Creates an object in the current context and returns its handle.
pub(super) fn create_in_current(action: impl FnOnce(&mut Session<'_>) -> Result<u32>) -> Result<Handle> {
    let id = current::get().ok_or(ResultCode::InvalidContext)?;
    Ok(handle(id, with_current(action)?))
}

/// Returns the context and the id of an object.
fn find_object(object: Handle) -> Result<(u32, u32)> {
    let (context, id) = parts(object);
    find(context).map_err(|code| if code == ResultCode::InvalidContext { ResultCode::InvalidHandle } else { code })?;
    Ok((context, id))
}

/// Runs an action on an object in its own context.
pub(super) fn with<T>(object: Handle, action: impl FnOnce(&mut Session<'_>, u32) -> Result<T>) -> Result<T> {
    let (context, id) = find_object(object)?;
    with_context(context, |session| action(session, id))
}

/// The id of the context that a stream or other object belongs to.
fn context_of(object: Handle) -> Option<u32> {
    if DEFAULT_STREAMS.contains(&object.addr()) { current::get() } else { Some(parts(object).0) }
}

/// The id of `object`, which must belong to the same context as `other`, usually a stream.
pub(super) fn id_in_context_of(other: Handle, object: Handle) -> Result<u32> {
    let (context, id) = parts(object);
    if context_of(other) == Some(context) { Ok(id) } else { Err(ResultCode::InvalidHandle) }
}

/// Runs an action on a stream in its own context.
pub(super) fn with_stream<T>(
    stream: Handle,
    action: impl FnOnce(&mut Session<'_>, StreamId) -> Result<T>,
) -> Result<T> {
    let (context, id) = if DEFAULT_STREAMS.contains(&stream.addr()) {
        (current::get().ok_or(ResultCode::InvalidContext)?, DEFAULT_STREAM)
    } else {
        find_object(stream)?
    };
    with_context(context, |session| action(session, id))
}

/// Runs an action on a stream whose context must be the current one.
pub(super) fn with_current_stream<T>(
    stream: Handle,
    action: impl FnOnce(&mut Session<'_>, StreamId) -> Result<T>,
) -> Result<T> {
    if current::get().is_some() && context_of(stream) == current::get() {
        with_stream(stream, action)
    } else {
        Err(ResultCode::InvalidContext)
    }
}
