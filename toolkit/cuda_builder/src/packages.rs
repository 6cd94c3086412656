//! The packages that a crate of kernels is compiled from: itself and what it depends on, as cargo resolves them.
//!
//! They are read from `cargo tree`, which knows of patches, features and platforms, and asks for nothing but these packages:
//! not for what the rest of the workspace depends on, as `cargo metadata` does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, cargo};

/// A package and where it is from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version. A registry never has two packages of one version.
    pub version: String,
    /// The features it is compiled with, separated by commas.
    pub features: String,
    /// Where its sources are.
    pub sources: Sources,
}

/// Where the sources of a package are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sources {
    /// In this directory, where they can change.
    Directory(PathBuf),
    /// In a registry or at a commit of a git repository, named as cargo names it: empty for crates.io.
    Fixed(String),
}

/// All packages that go into the PTX of one crate.
pub struct Packages {
    root: PathBuf,
    kernels: Package,
    all: BTreeSet<Package>,
}

impl Packages {
    /// Asks cargo for the packages of the crate in `dir`.
    pub fn of(dir: &Path, features: &[String]) -> Result<Packages, Error> {
        let root = ask(dir, &["locate-project", "--workspace", "--message-format=plain"])?;
        let root = Path::new(root.trim()).parent().map(Path::to_owned).unwrap_or_default();

        let features = features.join(",");
        let mut tree = vec!["tree", "--edges=normal,build", "--target=nvptx64-nvidia-cuda", "--prefix=none"];
        tree.extend(["--charset=utf8", "--format={p}|{f}", "--features", &features]);
        // Without the network if that will do; and then without a word if it will not.
        let frozen = [tree.as_slice(), &["--frozen", "--quiet"]].concat();
        let text = ask(dir, &frozen).or_else(|_| ask(dir, &tree))?;

        let mut all = text.lines().filter(|line| !line.is_empty()).map(Package::parse);
        let kernels = all.next().unwrap_or_else(|| Err(unexpected("")))?;
        let rest = all.collect::<Result<BTreeSet<_>, _>>()?;
        Ok(Packages { root, all: [kernels.clone()].into_iter().chain(rest).collect(), kernels })
    }

    /// The workspace's directory: paths in the PTX are relative to it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The crate of kernels itself.
    pub fn kernels(&self) -> &Package {
        &self.kernels
    }

    /// All of them, in an order that depends on nothing else.
    pub fn all(&self) -> impl Iterator<Item = &Package> {
        self.all.iter()
    }

    /// The directories outside of the workspace that packages are in, and the packages' names.
    pub fn outside(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.all.iter().filter_map(|package| match &package.sources {
            Sources::Directory(dir) if !dir.starts_with(&self.root) => Some((dir.as_path(), package.name.as_str())),
            _ => None,
        })
    }
}

impl Package {
    /// Reads a line such as `name v1.2.3 (proc-macro) (/its/directory)|default,std (*)`.
    fn parse(line: &str) -> Result<Package, Error> {
        let seen_before = line.strip_suffix(" (*)");
        let parts = seen_before.unwrap_or(line).rsplit_once('|').and_then(|(package, features)| {
            let mut words = package.splitn(3, ' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?, words.next().unwrap_or_default(), features))
        });
        let (name, version, source, features) = parts.ok_or_else(|| unexpected(line))?;
        let source = source.strip_prefix("(proc-macro)").unwrap_or(source).trim_start();
        let source = source.strip_prefix('(').and_then(|s| s.strip_suffix(')')).unwrap_or(source);
        let sources = match Path::new(source) {
            path if path.is_absolute() => Sources::Directory(path.to_owned()),
            _ => Sources::Fixed(source.to_owned()),
        };
        Ok(Package { name: name.to_owned(), version: version.to_owned(), features: features.to_owned(), sources })
    }
}

/// Runs cargo in the crate's directory, and returns what it prints.
fn ask(dir: &Path, arguments: &[&str]) -> Result<String, Error> {
    let active = cargo::active();
    fs::metadata(dir).map_err(Error::io(dir))?;
    let output = cargo::command(&active, dir).args(arguments).output().map_err(Error::io(&active))?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|_| unexpected(""));
    }
    Err(Error::Unresolved { crate_dir: dir.to_owned(), said: said(&String::from_utf8_lossy(&output.stderr)) })
}

/// What cargo says of an error, without what it did before, in one line.
fn said(stderr: &str) -> String {
    let lines = stderr.lines().skip_while(|line| !line.starts_with("error"));
    let lines = lines.map(|line| line.trim_start_matches("error:").trim()).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

fn unexpected(line: &str) -> Error {
    Error::Unexpected(format!("cargo tree printed what is not a package: `{line}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(line: &str) -> (String, String, String, Sources) {
        let package = Package::parse(line).unwrap();
        (package.name, package.version, package.features, package.sources)
    }

    #[test]
    fn lines_of_cargo_tree_are_packages() {
        let path = |dir: &str| Sources::Directory(dir.into());
        let fixed = |source: &str| Sources::Fixed(source.into());
        for (line, name, version, features, origin) in [
            ("a v0.1.0 (/x/a (old))|", "a", "0.1.0", "", path("/x/a (old)")),
            ("m v1.0.0 (proc-macro) (/x/m)|", "m", "1.0.0", "", path("/x/m")),
            ("libm v0.2.16|arch,default (*)", "libm", "0.2.16", "arch,default", fixed("")),
            ("syn v2.0.1 (proc-macro)|full", "syn", "2.0.1", "full", fixed("")),
            (
                "g v0.3.0-rc.1 (https://host/g?rev=1#0123abcd)|",
                "g",
                "0.3.0-rc.1",
                "",
                fixed("https://host/g?rev=1#0123abcd"),
            ),
        ] {
            assert_eq!(parts(line), (name.into(), version.into(), features.into(), origin), "{line}");
        }
        for line in ["", "a v1.0.0", "[build-dependencies]|", "a 1.0.0|"] {
            assert!(Package::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn errors_are_what_cargo_says_in_one_line() {
        let stderr = "    Updating index\nerror: no package `x` found\nlocation: y\n\nCaused by:\n  z\n";
        assert_eq!(said(stderr), "no package `x` found location: y Caused by: z");
    }
}
