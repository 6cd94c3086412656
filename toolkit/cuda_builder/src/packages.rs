//! The packages that a kernel crate is compiled from: itself and its dependencies, as cargo resolves them.
//!
//! They are read from `cargo tree`, which takes patches, features and platforms into account. Unlike `cargo metadata`,
//! it needs only these packages, and not the dependencies of the rest of the workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, cargo};

/// A package and its origin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// The package's name.
    pub name: String,
    /// The package's version. A registry never has two packages with the same name and version.
    pub version: String,
    /// The enabled features, separated by commas.
    pub features: String,
    /// The location of its sources.
    pub sources: Sources,
}

/// The location of a package's sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sources {
    /// A local directory, whose contents can change.
    Directory(PathBuf),
    /// A registry or a commit of a git repository, in cargo's spelling. Empty for crates.io.
    Fixed(String),
}

/// All packages that are compiled into the PTX of one crate.
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
        // First tries without the network, and without printing an error if that fails.
        let frozen = [tree.as_slice(), &["--frozen", "--quiet"]].concat();
        let text = ask(dir, &frozen).or_else(|_| ask(dir, &tree))?;

        let mut all = text.lines().filter(|line| !line.is_empty()).map(Package::parse);
        let kernels = all.next().unwrap_or_else(|| Err(unexpected("")))?;
        let rest = all.collect::<Result<BTreeSet<_>, _>>()?;
        Ok(Packages { root, all: [kernels.clone()].into_iter().chain(rest).collect(), kernels })
    }

    /// Returns the workspace's directory. Paths in the PTX are relative to it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the kernel crate itself.
    pub fn kernels(&self) -> &Package {
        &self.kernels
    }

    /// Returns all packages in a fixed order.
    pub fn all(&self) -> impl Iterator<Item = &Package> {
        self.all.iter()
    }

    /// Returns the packages in directories outside the workspace: their directories and names.
    pub fn outside(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.all.iter().filter_map(|package| match &package.sources {
            Sources::Directory(dir) if !dir.starts_with(&self.root) => Some((dir.as_path(), package.name.as_str())),
            _ => None,
        })
    }
}

impl Package {
    /// Parses a line such as `name v1.2.3 (proc-macro) (/its/directory)|default,std (*)`.
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

/// Runs cargo in the crate's directory and returns its output.
fn ask(dir: &Path, arguments: &[&str]) -> Result<String, Error> {
    let active = cargo::active();
    fs::metadata(dir).map_err(Error::io(dir))?;
    let output = cargo::command(&active, dir).args(arguments).output().map_err(Error::io(&active))?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|_| unexpected(""));
    }
    Err(Error::Unresolved { crate_dir: dir.to_owned(), said: error_line(&String::from_utf8_lossy(&output.stderr)) })
}

/// Extracts cargo's error message as one line, without the progress messages before it.
fn error_line(stderr: &str) -> String {
    let lines = stderr.lines().skip_while(|line| !line.starts_with("error"));
    let lines = lines.map(|line| line.trim_start_matches("error:").trim()).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

fn unexpected(line: &str) -> Error {
    Error::Unexpected(format!("cargo tree printed a line that is not a package: `{line}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(line: &str) -> (String, String, String, Sources) {
        let package = Package::parse(line).unwrap();
        (package.name, package.version, package.features, package.sources)
    }

    #[test]
    fn lines_of_cargo_tree_are_parsed_as_packages() {
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
    fn cargo_errors_are_joined_into_one_line() {
        let stderr = "    Updating index\nerror: no package `x` found\nlocation: y\n\nCaused by:\n  z\n";
        assert_eq!(error_line(stderr), "no package `x` found location: y Caused by: z");
    }
}
