//! Opening a model's files, and reading small ones whole.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Maximum size of a text file, such as a tokenizer's or an index.
const MAX_TEXT: u64 = 512 << 20;

/// Opens a file to read it. A named pipe would block until someone writes to it, so only regular files are opened.
///
/// # Errors
/// If the file does not exist, is not a regular file, or cannot be read.
pub fn open_file(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory, not a file"));
    }
    if !kind.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path)
}

/// Returns the contents of a file of at most [`MAX_TEXT`] bytes, or `None` if the file does not exist.
pub fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match open_file(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    };
    let mut text = Vec::new();
    // Bounded by the bytes read: the file may grow.
    file.take(MAX_TEXT + 1).read_to_end(&mut text).map_err(|error| Error::io(path, error))?;
    if text.len() as u64 > MAX_TEXT {
        let reason = format!("it is larger than {} MiB", MAX_TEXT >> 20);
        return Err(Error::io(path, std::io::Error::new(ErrorKind::FileTooLarge, reason)));
    }
    Ok(Some(text))
}
