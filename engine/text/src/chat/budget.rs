//! The budget of one rendering: how many bytes a template may read and write.
//!
//! minijinja limits the number of instructions, but a single instruction can double a text or compare two long lists.
//! Each instruction whose cost depends on its operands therefore first takes bytes from a budget (see
//! [`hooks`](super::hooks)). Each rendering has its own thread, so the budget is thread-local.
//!
//! Values that a template builds are also limited as trees. A list that contains another list twice is small in memory,
//! but at every level it doubles the time to compare or print it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Budget of a rendering in bytes, without the share for the conversation.
pub(super) const BASE: u64 = 64 << 20;
/// Extra bytes per byte of the conversation. Templates that append every message to one text need the most.
const PER_INPUT_BYTE: u64 = 2048;
/// Maximum extra bytes for the conversation.
const MAX_FOR_INPUT: u64 = 1 << 30;
/// Maximum nesting of lists and mappings. JSON from a client may nest 128 levels.
const MAX_DEPTH: u32 = 256;
/// Assumed size of a list item in bytes.
pub(super) const ITEM: usize = 32;
/// Assumed size of a mapping entry in bytes.
const ENTRY: usize = 128;

thread_local! {
    static TOTAL: Cell<u64> = const { Cell::new(BASE) };
    static LEFT: Cell<u64> = const { Cell::new(BASE) };
    /// Weights of lists, by address. The map holds the values, so that their addresses are not reused.
    static WEIGHED: RefCell<HashMap<usize, (Value, Weight)>> = RefCell::default();
}

/// The size of a value when it is printed or compared. Shared parts count each time they occur.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    pub(super) bytes: u64,
    /// Nesting of lists and mappings.
    depth: u32,
}

impl Weight {
    /// Returns the weight of a list that has the items of two lists.
    fn joined(self, other: Weight) -> Weight {
        Weight { bytes: self.bytes.saturating_add(other.bytes), depth: self.depth.max(other.depth) }
    }
}

/// Lifts this thread's limit, for work on a client's values before the template starts.
pub(super) fn lift() {
    set(u64::MAX);
}

/// Starts this thread's budget for a template that reads `inputs`. It has `base` bytes and a share for the inputs.
///
/// # Errors
/// If an input nests too deeply.
pub(super) fn start<'a>(base: u64, inputs: impl IntoIterator<Item = &'a Value>) -> Result<(), Error> {
    lift();
    let mut bytes = 0_u64;
    for input in inputs {
        bytes = bytes.saturating_add(weigh(input)?.bytes);
    }
    set(base + bytes.saturating_mul(PER_INPUT_BYTE).min(MAX_FOR_INPUT));
    Ok(())
}

fn set(bytes: u64) {
    TOTAL.set(bytes);
    LEFT.set(bytes);
}

/// Takes bytes from the budget.
///
/// # Errors
/// If the budget has fewer bytes left.
pub(super) fn spend(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes as u64) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(exceeded()),
    }
}

fn exceeded() -> Error {
    let limit = TOTAL.get() >> 20;
    Error::new(ErrorKind::OutOfFuel, format!("it reads and writes more than {limit} MiB, the limit for these messages"))
}

/// Takes the bytes for reading a value, without its items.
///
/// # Errors
/// If the budget is exceeded.
pub(super) fn spend_on(value: &Value) -> Result<(), Error> {
    spend(value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len))
}

/// Takes the bytes of a newly built value. A lazy list becomes a real one.
///
/// # Errors
/// If the budget is exceeded, the value alone exceeds the whole budget, or it nests too deeply.
pub(super) fn charge(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => spend_on(&value)?,
        ValueKind::Seq | ValueKind::Iterable if address(&value).is_none() => return list(value.try_iter()?),
        ValueKind::Seq => {
            spend(value.len().unwrap_or(0).saturating_mul(ITEM))?;
            weigh(&value)?;
        }
        ValueKind::Map if is_data(&value) => {
            spend(value.len().unwrap_or(0).saturating_mul(ENTRY))?;
            weigh(&value)?;
        }
        _ => {}
    }
    Ok(value)
}

/// Builds a list of `items` and takes its bytes.
///
/// # Errors
/// If the budget is exceeded, the list alone exceeds the whole budget, or it nests too deeply.
pub(super) fn list(items: impl Iterator<Item = Value>) -> Result<Value, Error> {
    let items = items.map(|item| spend(ITEM).map(|()| item)).collect::<Result<Vec<Value>, Error>>()?;
    let list = Value::from_object(items);
    weigh(&list)?;
    Ok(list)
}

/// Concatenates two lists and takes the result's bytes. This is cheap, because it does not weigh the items again.
///
/// # Errors
/// If the budget is exceeded, or the list alone exceeds the whole budget.
pub(super) fn joined(left: &Value, right: &Value) -> Result<Value, Error> {
    let weight = weigh(left)?.joined(weigh(right)?);
    let items = left.try_iter()?.chain(right.try_iter()?);
    let items = items.map(|item| spend(ITEM).map(|()| item)).collect::<Result<Vec<Value>, Error>>()?;
    let list = Value::from_object(items);
    remember(&list, weight)?;
    Ok(list)
}

/// Returns the size of a value as a tree.
///
/// # Errors
/// If it exceeds the whole budget, nests too deeply, or contains something other than data, such as a macro.
pub(super) fn weigh(value: &Value) -> Result<Weight, Error> {
    weigh_at(value, 0)
}

/// Refuses a value that must not be an item or an attribute.
///
/// # Errors
/// As for [`weigh`].
pub(super) fn check_item(value: &Value) -> Result<(), Error> {
    weigh_at(value, 1).map(drop)
}

fn weigh_at(value: &Value, level: u32) -> Result<Weight, Error> {
    spend(1)?;
    let mut weight = match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            if let Some(weight) = remembered(value) {
                check_depth(level + weight.depth)?;
                return Ok(weight);
            }
            check_depth(level + 1)?;
            let mut weight = Weight::default();
            for item in value.try_iter()? {
                weight = weight.joined(weigh_at(&item, level + 1)?);
            }
            weight
        }
        ValueKind::Map if is_data(value) => {
            check_depth(level + 1)?;
            let mut weight = Weight::default();
            for key in value.try_iter()? {
                // Building a mapping hashes its keys, and so does reading it.
                let own = weigh_at(&key, level + 1)?;
                spend(own.bytes as usize)?;
                let item = value.get_item(&key)?;
                weight = weight.joined(own).joined(weigh_at(&item, level + 1)?);
            }
            weight
        }
        ValueKind::Map | ValueKind::Plain if level > 0 => {
            let why =
                "a list, a mapping or a namespace can only hold data, not a namespace, a loop, a macro or a function";
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
        _ => {
            let len = value.as_str().map_or(0, str::len);
            return Ok(Weight { bytes: (len + ITEM) as u64, depth: 0 });
        }
    };
    weight.bytes = weight.bytes.saturating_add(ITEM as u64);
    weight.depth += 1;
    remember(value, weight)?;
    Ok(weight)
}

fn check_depth(depth: u32) -> Result<(), Error> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("its values nest deeper than {MAX_DEPTH} levels")))
}

/// Whether a mapping is plain data and not a namespace, a loop or a macro.
fn is_data(map: &Value) -> bool {
    let is_collection = |name: &str| ["indexmap::", "alloc::", "std::"].iter().any(|crate_| name.starts_with(crate_));
    map.as_object().is_some_and(|object| is_collection(object.type_name()))
}

/// Returns the address of a list's items, which identifies the list.
fn address(value: &Value) -> Option<usize> {
    let items = value.as_object()?.downcast_ref::<Vec<Value>>()?;
    Some(std::ptr::from_ref(items).addr())
}

fn remembered(value: &Value) -> Option<Weight> {
    let address = address(value)?;
    WEIGHED.with_borrow(|weighed| weighed.get(&address).map(|(_, weight)| *weight))
}

fn remember(value: &Value, weight: Weight) -> Result<(), Error> {
    if weight.bytes > TOTAL.get() {
        return Err(exceeded());
    }
    if let Some(address) = address(value) {
        spend(ENTRY)?;
        WEIGHED.with_borrow_mut(|weighed| weighed.insert(address, (value.clone(), weight)));
    }
    Ok(())
}
