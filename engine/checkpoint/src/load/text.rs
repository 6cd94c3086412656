//! Reading small files whole.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Maximum size of a text file, such as a tokenizer's or an index.
const MAX_TEXT: u64 = 512 << 20;

/// Returns the contents of a file of at most [`MAX_TEXT`] bytes, or `None` if the file does not exist.
pub fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    };
    let mut text = Vec::new();
    // Limits the bytes read, not the size that the file system reports, because the path may be a device.
    file.take(MAX_TEXT + 1).read_to_end(&mut text).map_err(|error| Error::io(path, error))?;
    if text.len() as u64 > MAX_TEXT {
        let reason = format!("it is larger than {} MiB", MAX_TEXT >> 20);
        return Err(Error::io(path, std::io::Error::new(ErrorKind::FileTooLarge, reason)));
    }
    Ok(Some(text))
}
