//! The inputs of the PTX, and their hash.
//!
//! The inputs are the kernels crate, all crates compiled into it, and the two files of this crate that turn them into
//! PTX. Crates in local directories are hashed with their manifest and sources. Crates from a registry or a git
//! repository cannot change, so their version and commit are hashed. The compiler's version is not an input: PTX that
//! another compiler made from the same sources is also valid.

use std::fs;
use std::path::{Path, PathBuf};

use crate::hash::Hash;
use crate::packages::{Packages, Sources};
use crate::{Arch, Error};

/// The source files of this crate that affect the PTX.
const RECIPE: [&str; 2] = [include_str!("compile.rs"), include_str!("finish.rs")];

/// The inputs of one build.
pub struct BuildInputs {
    packages: Packages,
    watched: Vec<PathBuf>,
    hash: String,
}

impl BuildInputs {
    /// Collects the inputs of the crate in `dir`.
    pub fn of(dir: &Path, arch: Arch, features: &[String]) -> Result<BuildInputs, Error> {
        let packages = Packages::of(dir, features)?;
        let mut hash = Hash::new();
        for text in RECIPE.into_iter().chain([arch.name()]).chain(features.iter().map(String::as_str)) {
            hash.text(text);
        }
        // The workspace's manifest and lock file determine the packages.
        let mut watched = Vec::from(["Cargo.toml", "Cargo.lock"].map(|file| packages.root().join(file)));
        for package in packages.all() {
            for text in [&package.name, &package.version, &package.features] {
                hash.text(text);
            }
            match &package.sources {
                Sources::Fixed(source) => hash.text(source),
                Sources::Directory(dir) => sources(dir, &mut hash, &mut watched)?,
            }
        }
        watched.retain(|path| path.exists());
        Ok(BuildInputs { packages, watched, hash: hash.finish() })
    }

    /// Returns the packages.
    pub fn packages(&self) -> &Packages {
        &self.packages
    }

    /// Returns the files and directories that contain the inputs.
    pub fn watched(&self) -> &[PathBuf] {
        &self.watched
    }

    /// Returns the hash in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// Hashes a package's manifest, build script and sources.
fn sources(dir: &Path, hash: &mut Hash, watched: &mut Vec<PathBuf>) -> Result<(), Error> {
    let src = dir.join("src");
    let mut files = vec![dir.join("Cargo.toml")];
    files.extend(Some(dir.join("build.rs")).filter(|script| script.exists()));
    watched.extend(files.iter().cloned().chain([src.clone()]));
    list(&src, &mut files)?;
    // Directory order depends on the file system.
    files.sort_by_key(|file| name(file, dir));
    for file in &files {
        hash.text(&name(file, dir));
        hash.text(&fs::read_to_string(file).map_err(Error::io(file))?);
    }
    Ok(())
}

/// Returns a file's path relative to `dir`, with `/` on all systems.
fn name(file: &Path, dir: &Path) -> String {
    let parts = file.strip_prefix(dir).unwrap_or(file).components();
    parts.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
