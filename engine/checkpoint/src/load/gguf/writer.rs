//! Writing GGUF files: first the header, which is built in memory, then the tensors one by one.

use std::io::{self, Write};

use super::types;
use crate::error::Error;
use crate::quantised::QuantType;
use crate::tensor::DType;

/// Alignment of tensors in bytes.
const ALIGNMENT: u64 = 32;

/// A file's metadata, in the order of writing.
#[derive(Default)]
pub(super) struct Entries {
    count: u64,
    bytes: Vec<u8>,
}

/// The error for a model that the format cannot represent.
pub(super) fn refused(what: impl std::fmt::Display) -> Error {
    Error::Unsupported(format!("a GGUF file cannot represent a model in which {what}"))
}

/// The element type of a tensor to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Float(DType),
    Quantised(QuantType),
}

/// A tensor's entry in the header.
#[derive(Clone)]
pub(super) struct Tensor {
    pub name: String,
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    pub stored: Stored,
}

impl Entries {
    fn entry(&mut self, name: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        push_text(&mut self.bytes, name);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }

    pub fn u32(&mut self, name: &str, value: usize) {
        // No size of a model is larger. A larger one would be refused when the file is read.
        self.entry(name, 4, &u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
    }

    pub fn f32(&mut self, name: &str, value: f32) {
        self.entry(name, 6, &value.to_le_bytes());
    }

    pub fn bool(&mut self, name: &str, value: bool) {
        self.entry(name, 7, &[value.into()]);
    }

    pub fn text(&mut self, name: &str, value: &str) {
        let mut bytes = Vec::new();
        push_text(&mut bytes, value);
        self.entry(name, 8, &bytes);
    }

    pub fn texts<T: AsRef<str>>(&mut self, name: &str, values: &[T]) {
        let mut bytes = array(8, values.len());
        values.iter().for_each(|value| push_text(&mut bytes, value.as_ref()));
        self.entry(name, 9, &bytes);
    }

    pub fn bools(&mut self, name: &str, values: &[bool]) {
        let mut bytes = array(7, values.len());
        bytes.extend(values.iter().map(|value| u8::from(*value)));
        self.entry(name, 9, &bytes);
    }

    pub fn i32s(&mut self, name: &str, values: &[i32]) {
        let mut bytes = array(5, values.len());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        self.entry(name, 9, &bytes);
    }

    pub fn f32s(&mut self, name: &str, values: &[f32]) {
        let mut bytes = array(6, values.len());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        self.entry(name, 9, &bytes);
    }
}

impl Tensor {
    /// Bytes of the tensor's data.
    pub fn bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&extent| extent as u64).product();
        match self.stored {
            Stored::Float(dtype) => elements * dtype.size() as u64,
            Stored::Quantised(kind) => elements / kind.group() as u64 * kind.group_bytes() as u64,
        }
    }
}

/// A file whose header has been written. The data of the tensors follows in the header's order.
pub(super) struct Body<W> {
    out: W,
    written: u64,
}

/// Writes the header of a file with these tensors.
pub(super) fn header<W: Write>(mut out: W, entries: &Entries, tensors: &[Tensor]) -> io::Result<Body<W>> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(entries.count.to_le_bytes());
    bytes.extend(&entries.bytes);
    let mut offset = 0u64;
    for tensor in tensors {
        push_text(&mut bytes, &tensor.name);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&extent| bytes.extend((extent as u64).to_le_bytes()));
        let number = match tensor.stored {
            Stored::Float(dtype) => types::number(dtype),
            Stored::Quantised(kind) => types::number_of_quantised(kind)
                .ok_or_else(|| io::Error::other(format!("a GGUF file cannot contain tensors of type {kind}")))?,
        };
        bytes.extend(number.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
    }
    out.write_all(&bytes)?;
    let mut body = Body { out, written: bytes.len() as u64 };
    body.pad()?;
    Ok(body)
}

impl<W: Write> Body<W> {
    /// Writes the data of the next tensor.
    pub fn tensor(&mut self, data: &[u8]) -> io::Result<()> {
        self.out.write_all(data)?;
        self.written += data.len() as u64;
        self.pad()
    }

    fn pad(&mut self) -> io::Result<()> {
        let gap = self.written.next_multiple_of(ALIGNMENT) - self.written;
        self.written += gap;
        self.out.write_all(&[0; ALIGNMENT as usize][..gap as usize])
    }

    /// Flushes the file and returns it.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn array(kind: u32, count: usize) -> Vec<u8> {
    kind.to_le_bytes().into_iter().chain((count as u64).to_le_bytes()).collect()
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
