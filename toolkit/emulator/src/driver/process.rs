//! What the driver keeps for the whole process: contexts, and which of them is current to each thread.

use super::context::{DEFAULT_STREAM, DriverContext};
use super::host_call;
use super::options::DeviceOptions;
use super::queue::StreamId;
use super::result_code::{Result, ResultCode};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What a caller holds of a stream, a module, an event or another object: the number of its context, and its own number in
/// that context. It is never used as an address, so a handle of something that is gone gives an error and does no harm.
pub(super) type Handle = *mut c_void;

/// The default stream, also by the name that excludes the default stream of a thread.
const DEFAULT_STREAMS: [usize; 2] = [0, 1];

#[derive(Default)]
struct Process {
    initialised: bool,
    options: DeviceOptions,
    contexts: HashMap<u32, Arc<Mutex<DriverContext>>>,
    /// The primary context and how often it was retained.
    primary: Option<(u32, usize)>,
    next: u32,
}

static PROCESS: LazyLock<Mutex<Process>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The stack of contexts; the last one is current.
    static CURRENT: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a handle.
pub(super) fn handle(context: u32, id: u32) -> Handle {
    std::ptr::without_provenance_mut((context as usize) << 32 | id as usize)
}

/// The context's and the object's number.
pub(super) fn parts(handle: Handle) -> (u32, u32) {
    ((handle.addr() >> 32) as u32, handle.addr() as u32)
}

pub(super) fn initialise() {
    lock(&PROCESS).initialised = true;
}

/// What the device is, once the driver has been initialised.
pub(super) fn device(ordinal: i32) -> Result<DeviceOptions> {
    let process = lock(&PROCESS);
    match (process.initialised, ordinal) {
        (false, _) => Err(ResultCode::NotInitialized),
        (true, 0) => Ok(process.options.clone()),
        (true, _) => Err(ResultCode::InvalidDevice),
    }
}

/// Sets what the device is for contexts that are created from now on.
pub(super) fn configure(options: DeviceOptions) {
    lock(&PROCESS).options = options;
}

impl Process {
    fn create(&mut self) -> u32 {
        self.next += 1;
        self.contexts.insert(self.next, Arc::new(Mutex::new(DriverContext::new(self.options.clone()))));
        self.next
    }
}

/// Creates a context; it is current to no thread.
pub(super) fn create(ordinal: i32) -> Result<u32> {
    device(ordinal)?;
    Ok(lock(&PROCESS).create())
}

pub(super) fn destroy(id: u32) -> Result<()> {
    CURRENT.with_borrow_mut(|stack| stack.pop_if(|current| *current == id));
    let context = lock(&PROCESS).contexts.remove(&id);
    context.map(|_| ()).ok_or(ResultCode::InvalidContext)
}

pub(super) fn retain_primary(ordinal: i32) -> Result<u32> {
    device(ordinal)?;
    let mut process = lock(&PROCESS);
    let (id, count) = match process.primary {
        Some(primary) => primary,
        None => (process.create(), 0),
    };
    process.primary = Some((id, count + 1));
    Ok(id)
}

/// Gives the primary context back, or up entirely.
pub(super) fn release_primary(ordinal: i32, entirely: bool) -> Result<()> {
    device(ordinal)?;
    let gone = {
        let mut process = lock(&PROCESS);
        match &mut process.primary {
            Some((_, count)) if *count > 1 && !entirely => {
                *count -= 1;
                None
            }
            Some(_) => process.primary.take(),
            None if entirely => None,
            None => return Err(ResultCode::InvalidContext),
        }
    };
    gone.map_or(Ok(()), |(id, _)| destroy(id))
}

/// The number of the calling thread's current context.
pub(super) fn current() -> Option<u32> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

pub(super) fn push(id: u32) -> Result<()> {
    find(id)?;
    CURRENT.with_borrow_mut(|stack| stack.push(id));
    Ok(())
}

pub(super) fn pop() -> Result<u32> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(ResultCode::InvalidContext)
}

/// Replaces the top of the stack.
pub(super) fn set_current(id: Option<u32>) -> Result<()> {
    id.map(find).transpose()?;
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(id);
    });
    Ok(())
}

fn find(id: u32) -> Result<Arc<Mutex<DriverContext>>> {
    if host_call::is_running() {
        return Err(ResultCode::NotPermitted);
    }
    let process = lock(&PROCESS);
    if !process.initialised {
        return Err(ResultCode::NotInitialized);
    }
    process.contexts.get(&id).cloned().ok_or(ResultCode::InvalidContext)
}

/// Does something with the current context.
pub(super) fn with_current<T>(action: impl FnOnce(&mut DriverContext) -> Result<T>) -> Result<T> {
    let context = find(current().ok_or(ResultCode::InvalidContext)?)?;
    let mut context = lock(&context);
    action(&mut context)
}

/// Creates something in the current context and gives its handle.
pub(super) fn create_in_current(action: impl FnOnce(&mut DriverContext) -> Result<u32>) -> Result<Handle> {
    let id = current().ok_or(ResultCode::InvalidContext)?;
    Ok(handle(id, with_current(action)?))
}

/// Does something with an object in its own context.
pub(super) fn with<T>(object: Handle, action: impl FnOnce(&mut DriverContext, u32) -> Result<T>) -> Result<T> {
    let (context, id) = parts(object);
    let context = find(context)
        .map_err(|code| if code == ResultCode::InvalidContext { ResultCode::InvalidHandle } else { code })?;
    let mut context = lock(&context);
    action(&mut context, id)
}

/// The number of the context of a stream or of any other object.
fn context_of(object: Handle) -> Option<u32> {
    if DEFAULT_STREAMS.contains(&object.addr()) { current() } else { Some(parts(object).0) }
}

/// The number of an object that must be in the context of another, such as a stream.
pub(super) fn beside(other: Handle, object: Handle) -> Result<u32> {
    let (context, id) = parts(object);
    if context_of(other) == Some(context) { Ok(id) } else { Err(ResultCode::InvalidHandle) }
}

/// Does something with a stream in its own context.
pub(super) fn with_stream<T>(
    stream: Handle,
    action: impl FnOnce(&mut DriverContext, StreamId) -> Result<T>,
) -> Result<T> {
    if DEFAULT_STREAMS.contains(&stream.addr()) {
        return with_current(|context| action(context, DEFAULT_STREAM));
    }
    with(stream, action)
}

/// Does something with a stream, whose context must be the current one.
pub(super) fn with_current_stream<T>(
    stream: Handle,
    action: impl FnOnce(&mut DriverContext, StreamId) -> Result<T>,
) -> Result<T> {
    if current().is_some() && context_of(stream) == current() {
        with_stream(stream, action)
    } else {
        Err(ResultCode::InvalidContext)
    }
}
