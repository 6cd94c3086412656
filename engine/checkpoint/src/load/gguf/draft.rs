//! A file that appears under its name only when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Temporary names to try. Programs that were killed may have left files behind.
const MAX_NAMES: u32 = 100;

/// A file under construction. It has a temporary name next to its target, and dropping it removes it. An existing target
/// is untouched until [`Draft::keep`].
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    /// The temporary and the final path. `None` if the target is not a regular file, which is written in place.
    paths: Option<(PathBuf, PathBuf)>,
}

impl Draft {
    /// Begins the file that is to replace `target`.
    ///
    /// # Errors
    /// If `target` could not be written, or its directory has no room for another name.
    pub fn create(target: &Path) -> io::Result<Self> {
        let target = match fs::metadata(target) {
            // A pipe or a device cannot be replaced. The system refuses a directory here.
            Ok(metadata) if !metadata.is_file() => return Ok(Draft { file: File::create(target)?, paths: None }),
            Ok(_) => {
                // A file that may not be written may not be replaced either.
                OpenOptions::new().write(true).open(target)?;
                fs::canonicalize(target)?
            }
            Err(_) => target.to_owned(),
        };
        let mut last = io::Error::from(ErrorKind::AlreadyExists);
        for number in 0..MAX_NAMES {
            let path = target.with_file_name(format!(".quire-{}-{number}.tmp", std::process::id()));
            match File::create_new(&path) {
                Ok(file) => return Ok(Draft { file, paths: Some((path, target)) }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// If the system could not store all of it, or rename it. The target is then as before.
    pub fn keep(mut self) -> io::Result<()> {
        let Some((path, target)) = &self.paths else { return Ok(()) };
        self.file.sync_all()?;
        fs::rename(path, target)?;
        self.paths = None;
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.paths {
            // If it cannot be removed, the error that ended the writing matters more.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("a");
        for content in ["first", "second"] {
            let before = fs::read(&target).ok();
            let mut dropped = Draft::create(&target).unwrap();
            dropped.write_all(b"half").unwrap();
            let mut kept = Draft::create(&target).unwrap();
            kept.write_all(content.as_bytes()).unwrap();
            drop(dropped);
            assert_eq!(fs::read(&target).ok(), before);
            kept.keep().unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
            assert_eq!(names(directory.path()), ["a"]);
        }
    }

    #[test]
    fn a_directory_is_no_target() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Draft::create(directory.path()).is_err());
        assert!(Draft::create(&directory.path().join("missing/a")).is_err());
        assert_eq!(names(directory.path()), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("a"), directory.path().join("b"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut draft = Draft::create(&link).unwrap();
        draft.write_all(b"new").unwrap();
        draft.keep().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        let device = Draft::create(Path::new("/dev/null")).unwrap();
        device.keep().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
