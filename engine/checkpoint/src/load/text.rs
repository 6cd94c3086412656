//! Small files, read whole.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// The largest text file (a tokenizer's or an index) that is read.
const MAX_TEXT: u64 = 512 << 20;

/// The contents of a file of at most [`MAX_TEXT`] bytes; nothing if it does not exist.
pub fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    };
    let mut text = Vec::new();
    // Bounded by what is read, not by what the file system says: the path may name a device.
    file.take(MAX_TEXT + 1).read_to_end(&mut text).map_err(|error| Error::io(path, error))?;
    if text.len() as u64 > MAX_TEXT {
        let reason = format!("it is larger than {} MiB", MAX_TEXT >> 20);
        return Err(Error::io(path, std::io::Error::new(ErrorKind::FileTooLarge, reason)));
    }
    Ok(Some(text))
}
