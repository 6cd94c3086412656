//! The header of a GGUF file: metadata, then the type, shape and location of each tensor.
//!
//! The reader does not trust any number in the header. It compares counts with the number of remaining bytes before it
//! allocates, so it allocates at most a small multiple of the file's size.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::metadata::{Metadata, Value};
use super::types;
use crate::load::TensorInfo;

/// A header that has been checked.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub metadata: Metadata,
    /// The tensors. Their bytes are within the file and do not overlap.
    pub tensors: Vec<TensorInfo>,
}

/// A result whose error is a sentence about the file.
type Result<T> = std::result::Result<T, String>;

/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: usize = 4;
/// Minimum sizes in bytes of a metadata entry and of a tensor's description.
const MIN_ENTRY: usize = 8 + 4 + 1;
const MIN_TENSOR: usize = 8 + 4 + 4 + 8;

/// Reads the tensors' entries in a whole file, for tests and tools. Every returned range is within `file`, and its
/// length matches the tensor's type and shape.
///
/// # Errors
/// A sentence that says what is wrong with the file.
pub fn describe(file: &[u8]) -> Result<Vec<TensorInfo>> {
    Ok(read(file)?.tensors)
}

/// Reads the header of a whole file.
pub(super) fn read(file: &[u8]) -> Result<Header> {
    let mut bytes = Reader { file, at: 0 };
    if bytes.take(4).ok() != Some(b"GGUF") {
        return Err("it is not a GGUF file".into());
    }
    match bytes.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() < 1 << 16 && version >= 1 << 16 => {
            return Err("its byte order is big-endian, which is not supported".into());
        }
        version => return Err(format!("it has version {version} of the format; 2 and 3 are supported")),
    }
    let (tensors, entries) = (bytes.u64()?, bytes.u64()?);
    let entries = bytes.count(entries, MIN_ENTRY, "entries of metadata")?;
    let mut metadata = HashMap::new();
    for _ in 0..entries {
        let name = bytes.text()?;
        let kind = bytes.u32()?;
        let value = bytes.value(kind).map_err(|error| format!("{}: {error}", shown(&name)))?;
        match metadata.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(value)),
            Entry::Occupied(entry) => return Err(format!("its metadata has {} twice", shown(entry.key()))),
        }
    }
    let metadata = Metadata(metadata);
    let alignment = match metadata.0.get("general.alignment") {
        None => 32,
        Some(Value::Integer(bytes)) if *bytes > 0 && bytes % 8 == 0 && *bytes <= 1 << 30 => *bytes as usize,
        Some(_) => return Err("general.alignment is not a multiple of 8".into()),
    };
    let count = bytes.count(tensors, MIN_TENSOR, "tensors")?;
    let described = (0..count).map(|_| bytes.tensor()).collect::<Result<Vec<_>>>()?;
    let start = bytes.at.checked_next_multiple_of(alignment).ok_or("its header does not end")?;
    let mut tensors = Vec::with_capacity(described.len());
    for mut tensor in described {
        let location = start.checked_add(tensor.offset).filter(|_| tensor.offset % alignment == 0);
        let Some(offset) = location.filter(|at| at.checked_add(tensor.len).is_some_and(|end| end <= file.len())) else {
            return Err(format!("tensor {} is outside the file or not aligned", shown(&tensor.name)));
        };
        tensor.offset = offset;
        tensors.push(tensor);
    }
    check_disjoint(&mut tensors)?;
    Ok(Header { metadata, tensors })
}

/// Checks that no two tensors have the same name or overlap.
fn check_disjoint(tensors: &mut [TensorInfo]) -> Result<()> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("it has tensor {} twice", shown(&pair[0].name)));
    }
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
    match tensors.windows(2).find(|pair| pair[0].offset + pair[0].len > pair[1].offset) {
        Some(pair) => Err(format!("tensors {} and {} overlap", shown(&pair[0].name), shown(&pair[1].name))),
        None => Ok(()),
    }
}

/// Shortens a name from the file for an error message.
fn shown(name: &str) -> String {
    let shown: String = name.chars().take(80).collect();
    format!("{shown:?}")
}

/// A cursor over the bytes of a header. `at` is the offset of the next byte.
struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.file.len());
        let end = end.ok_or("it ends within its header; the file is cut off, or damaged")?;
        let taken = &self.file[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        Ok(std::array::from_fn(|i| taken[i]))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Checks a claimed count of items with at least `each` bytes against the remaining bytes.
    fn count(&self, count: u64, each: usize, what: &str) -> Result<usize> {
        let most = (self.file.len() - self.at) / each;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(format!("it claims {count} {what}, but is too short for them")),
        }
    }

    fn text(&mut self) -> Result<String> {
        let len = self.u64()?;
        let len = self.count(len, 1, "bytes of a string")?;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err("a string is not UTF-8".into()),
        }
    }

    /// Reads a value of the type with number `kind`.
    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Integer(self.array::<1>()?[0].into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(self.u32()?.into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => match self.array::<1>()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(format!("{other} is neither true nor false")),
            },
            8 => Value::Text(self.text()?),
            9 => self.values()?,
            10 => match i64::try_from(self.u64()?) {
                Ok(number) => Value::Integer(number),
                Err(_) => Value::Other,
            },
            11 => Value::Integer(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("a value of type {other}, which is unknown")),
        })
    }

    /// Reads an array. Arrays of numbers that this program does not use are skipped.
    fn values(&mut self) -> Result<Value> {
        let (kind, count) = (self.u32()?, self.u64()?);
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err("an array of arrays is not supported".into()),
            other => return Err(format!("an array of type {other}, which is unknown")),
        };
        let count = self.count(count, size, "elements of an array")?;
        if kind == 8 {
            return Ok(Value::Texts((0..count).map(|_| self.text()).collect::<Result<_>>()?));
        }
        let bytes = self.take(count * size)?;
        if kind == 7 {
            return match bytes.iter().find(|byte| **byte > 1) {
                Some(other) => Err(format!("{other} is neither true nor false")),
                None => Ok(Value::Integers(bytes.iter().map(|byte| (*byte).into()).collect())),
            };
        }
        let words = || bytes.as_chunks::<4>().0.iter().copied();
        Ok(match kind {
            4 => Value::Integers(words().map(|word| u32::from_le_bytes(word).into()).collect()),
            5 => Value::Integers(words().map(|word| i32::from_le_bytes(word).into()).collect()),
            6 => Value::Floats(words().map(f32::from_le_bytes).collect()),
            _ => Value::Other,
        })
    }

    /// Reads one tensor's entry. Its offset is still relative to the start of the data.
    fn tensor(&mut self) -> Result<TensorInfo> {
        let name = self.text()?;
        let wrong = |what: String| format!("tensor {} {what}", shown(&name));
        let dimensions = self.u32()? as usize;
        if dimensions > MAX_DIMENSIONS {
            return Err(wrong(format!("has {dimensions} dimensions")));
        }
        let mut shape = Vec::with_capacity(dimensions);
        for _ in 0..dimensions {
            let extent = self.u64()?;
            shape.push(usize::try_from(extent).map_err(|_| wrong(format!("has an extent of {extent}")))?);
        }
        // The file lists the innermost extent first.
        shape.reverse();
        let (kind, offset) = (self.u32()?, self.u64()?);
        let offset = usize::try_from(offset).map_err(|_| wrong("is outside the file".into()))?;
        let (cols, rows) = shape.split_last().map_or((1, &[][..]), |(cols, rows)| (*cols, rows));
        let (dtype, row) = types::stored(kind, cols).map_err(wrong)?;
        // Also check the number of elements, because a matrix without columns could claim any number of rows.
        let product = |first: usize| rows.iter().try_fold(first, |product, &extent| product.checked_mul(extent));
        let (Some(len), Some(_)) = (product(row), product(cols.max(1))) else {
            return Err(wrong(format!("has the shape {shape:?}, which is too large")));
        };
        Ok(TensorInfo { name, dtype, shape, offset, len })
    }
}
