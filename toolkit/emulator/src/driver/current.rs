//! The current context of each thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of threads that each context is current to.
static THREADS: Mutex<Option<HashMap<u32, usize>>> = Mutex::new(None);

thread_local! {
    static CURRENT: RefCell<Stack> = const { RefCell::new(Stack(Vec::new())) };
}

/// A thread's stack of contexts. The last one is current.
struct Stack(Vec<u32>);

impl Drop for Stack {
    fn drop(&mut self) {
        count(self.0.last(), None);
    }
}

fn lock() -> MutexGuard<'static, Option<HashMap<u32, usize>>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Updates the thread counts after the calling thread's current context changed.
fn count(before: Option<&u32>, after: Option<&u32>) {
    if before == after {
        return;
    }
    let mut threads = lock();
    let threads = threads.get_or_insert_default();
    if let Some(after) = after {
        *threads.entry(*after).or_default() += 1;
    }
    if let Some(before) = before
        && let Some(count) = threads.get_mut(before)
    {
        *count -= 1;
    }
    threads.retain(|_, count| *count != 0);
}

/// The id of the calling thread's current context.
pub(super) fn get() -> Option<u32> {
    CURRENT.with_borrow(|stack| stack.0.last().copied())
}

/// Changes the calling thread's stack of contexts.
pub(super) fn change<T>(action: impl FnOnce(&mut Vec<u32>) -> T) -> T {
    CURRENT.with_borrow_mut(|Stack(stack)| {
        let before = stack.last().copied();
        let result = action(stack);
        count(before.as_ref(), stack.last());
        result
    })
}

/// The number of threads whose current context is one of these.
pub(super) fn threads_of<'a>(contexts: impl Iterator<Item = &'a u32>) -> usize {
    let threads = lock();
    contexts.filter_map(|context| threads.as_ref()?.get(context)).sum()
}
