//! What goes into the PTX, and a hash of it.
//!
//! The kernels crate and the crates it reaches by `path`, each with its manifest and sources, and the two files of this
//! crate that turn them into PTX. The compiler's version is not among them: PTX that another compiler made from the same
//! sources serves as well. Neither is `Cargo.lock`: crates from a registry cannot be reached this way, and are refused.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Arch, Error};

/// The files that decide how sources become PTX.
const RECIPE: [&str; 2] = [include_str!("compile.rs"), include_str!("finish.rs")];

/// The inputs of one build.
pub struct Inputs {
    root: PathBuf,
    package: String,
    watched: Vec<PathBuf>,
    hash: String,
}

impl Inputs {
    /// Collects the inputs of the crate in `dir`.
    pub fn of(dir: &Path, arch: Arch, features: &[String]) -> Result<Inputs, Error> {
        let mut crates = vec![dir.to_owned()];
        let mut watched = Vec::new();
        let mut hash = Hash::new();
        let mut package = None;
        for text in RECIPE.into_iter().chain([arch.name()]).chain(features.iter().map(String::as_str)) {
            hash.text(text);
        }
        let mut next = 0;
        while let Some(dir) = crates.get(next).cloned() {
            next += 1;
            let manifest_path = dir.join("Cargo.toml");
            let manifest = read(&manifest_path)?;
            hash.text(&manifest);
            let found = Manifest::parse(&manifest, &manifest_path)?;
            package.get_or_insert(found.package);
            let mut files = Vec::new();
            list(&dir.join("src"), &mut files)?;
            // The order of a directory is the file system's own.
            files.sort_by_key(|file| name(file, &dir));
            for file in &files {
                hash.text(&name(file, &dir));
                hash.text(&read(file)?);
            }
            watched.extend([manifest_path, dir.join("src")]);
            for path in found.paths {
                let path = dir.join(path);
                if !crates.contains(&path) {
                    crates.push(path);
                }
            }
        }
        let package = package.unwrap_or_default();
        Ok(Inputs { root: root(dir)?, package, watched, hash: hash.finish() })
    }

    /// The workspace's directory: paths in the PTX are relative to it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The name of the crate's package.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The files and directories that all of it is in.
    pub fn watched(&self) -> &[PathBuf] {
        &self.watched
    }

    /// The hash, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// What a manifest says that matters here.
struct Manifest {
    package: String,
    paths: Vec<String>,
}

impl Manifest {
    /// Reads as much of TOML as the manifests of kernel crates use: a dependency is one line with a `path`.
    fn parse(text: &str, path: &Path) -> Result<Manifest, Error> {
        let mut manifest = Manifest { package: String::new(), paths: Vec::new() };
        let mut section = "";
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if line.starts_with('[') {
                section = line;
            } else if section == "[package]" && line.split('=').next().is_some_and(|key| key.trim() == "name") {
                manifest.package = quoted(line).unwrap_or_default().to_owned();
            } else if section.starts_with("[dependencies") || section.ends_with("dependencies]") && on_device(section) {
                let dependency = line.split_once("path").and_then(|(_, rest)| quoted(rest));
                let dependency = dependency.ok_or_else(|| {
                    Error::Unexpected(format!("{}: a kernel crate depends on others by `path`: {line}", path.display()))
                })?;
                manifest.paths.push(dependency.to_owned());
            }
        }
        if manifest.package.is_empty() {
            return Err(Error::Unexpected(format!("{}: no package with a name", path.display())));
        }
        Ok(manifest)
    }
}

/// Whether the dependencies of this section are compiled with the kernels.
fn on_device(section: &str) -> bool {
    !section.contains("dev-dependencies") && !section.contains("workspace")
}

/// The first string in quotes.
fn quoted(text: &str) -> Option<&str> {
    text.split('"').nth(1)
}

/// The topmost directory above `dir` that has a manifest with a workspace, or `dir` itself.
fn root(dir: &Path) -> Result<PathBuf, Error> {
    let dir = fs::canonicalize(dir).map_err(Error::io(dir))?;
    let is_root = |dir: &&Path| {
        fs::read_to_string(dir.join("Cargo.toml")).is_ok_and(|text| text.lines().any(|l| l.trim() == "[workspace]"))
    };
    Ok(dir.ancestors().find(is_root).unwrap_or(&dir).to_owned())
}

/// A file's name below `dir`, the same on all systems.
fn name(file: &Path, dir: &Path) -> String {
    let parts = file.strip_prefix(dir).unwrap_or(file).components();
    parts.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::io(path))
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

/// FNV-1a of 128 bits. It guards against forgetting, not against malice.
struct Hash(u128);

impl Hash {
    fn new() -> Hash {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// A text and its end. Line ends are those of Unix, whatever the checkout made of them.
    fn text(&mut self, text: &str) {
        let bytes = text.bytes().filter(|b| *b != b'\r').map(u128::from);
        for byte in bytes.chain([0x100]) {
            self.0 = (self.0 ^ byte).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn finish(self) -> String {
        format!("{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_name_their_paths() {
        let text = "[package]\nname = \"k\"\n[dependencies]\n# a remark\na = { package = \"b\", path = \"../x\" }\n\
                    [dev-dependencies]\nc = \"1\"\n[lints]\nworkspace = true\n";
        let manifest = Manifest::parse(text, Path::new("Cargo.toml")).unwrap();
        assert_eq!((manifest.package.as_str(), manifest.paths), ("k", vec!["../x".to_owned()]));
    }

    #[test]
    fn registry_crates_are_refused() {
        let text = "[package]\nname = \"k\"\n[dependencies]\nlibm = \"0.2\"\n";
        let error = Manifest::parse(text, Path::new("Cargo.toml")).err().unwrap();
        assert!(error.to_string().contains("libm"), "{error}");
    }

    #[test]
    fn hashes_tell_texts_apart_but_not_line_ends() {
        let hash = |texts: &[&str]| {
            let mut hash = Hash::new();
            texts.iter().for_each(|text| hash.text(text));
            hash.finish()
        };
        assert_eq!(hash(&["a\nb"]), hash(&["a\r\nb"]));
        assert_ne!(hash(&["a", "b"]), hash(&["ab"]));
        assert_ne!(hash(&["a", ""]), hash(&["a"]));
    }
}
