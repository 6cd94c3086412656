//! Compiles a crate of kernels to PTX, from a build script:
//!
//! ```no_run
//! # use cuda_builder::{Arch, CudaBuilder};
//! let built = CudaBuilder::new("../kernels").arch(Arch::Sm90a).copy_to("kernels.ptx").build();
//! ```
//!
//! The interface has the names and the structure of Rust-CUDA's `cuda_builder`, but the implementation is Quire's own.
//! It runs cargo on the crate for rustc's `nvptx64-nvidia-cuda` target. If the folder `prebuilt/` next to the sources
//! contains PTX made from exactly these sources, it uses this PTX instead. The crate's README explains how to choose.
//!
//! The kernel crate may depend on other crates by path, from a registry or from git. The builder asks cargo to list
//! them.

mod cargo;
mod compile;
mod error;
mod finish;
mod hash;
mod inputs;
mod packages;
pub mod ptx;
mod record;
mod toolchain;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub use error::Error;
pub use toolchain::Toolchain;

/// The environment variable that selects the source of PTX: `auto`, `build` or `prebuilt`.
pub const SOURCE_VARIABLE: &str = "QUIRE_PTX";

/// The environment variable with the path of the compiler for kernels.
pub const RUSTC_VARIABLE: &str = "QUIRE_DEVICE_RUSTC";

/// The GPU architecture that PTX is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// Ampere and everything after it.
    Sm80,
    /// Hopper only. Its kernels use features that later GPUs lack.
    Sm90a,
}

impl Arch {
    /// All architectures.
    pub const ALL: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

    /// Returns the compiler's name of the architecture.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90a => "sm_90a",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The source of PTX that the caller requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// `prebuilt/` if it was made from these sources, and a compiler otherwise.
    #[default]
    Auto,
    /// A compiler.
    Build,
    /// `prebuilt/`, which must have been made from these sources.
    Prebuilt,
}

impl Source {
    /// Returns the value of [`SOURCE_VARIABLE`].
    pub fn from_env() -> Result<Source, Error> {
        match env::var(SOURCE_VARIABLE).as_deref() {
            Err(env::VarError::NotPresent) | Ok("" | "auto") => Ok(Source::Auto),
            Ok("build") => Ok(Source::Build),
            Ok("prebuilt") => Ok(Source::Prebuilt),
            _ => Err(Error::UnknownSource),
        }
    }
}

/// The actual source of PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This file in `prebuilt/`.
    Prebuilt(PathBuf),
    /// A compiler of this version.
    Compiled(String),
}

/// The result of a build.
#[derive(Clone, Debug)]
pub struct Built {
    /// The PTX.
    pub ptx: String,
    /// The source of the PTX.
    pub origin: Origin,
    /// The record of the PTX's inputs, which belongs next to it in `prebuilt/`, such as `sm_80.inputs`.
    pub record: String,
}

/// Returns the hash of all inputs of the PTX of the crate in `crate_dir`. The record next to prebuilt PTX contains this
/// hash.
pub fn input_hash(crate_dir: &Path, arch: Arch, features: &[String]) -> Result<String, Error> {
    inputs::BuildInputs::of(crate_dir, arch, features).map(|inputs| inputs.hash().to_owned())
}

/// Builds the PTX of a kernel crate.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    arch: Arch,
    features: Vec<String>,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    source: Option<Source>,
    toolchain: Option<Option<Toolchain>>,
}

impl CudaBuilder {
    /// Creates a build of the crate in this directory. The path is relative to the current directory, which in a build
    /// script is the package's directory.
    pub fn new(crate_dir: impl Into<PathBuf>) -> CudaBuilder {
        CudaBuilder {
            crate_dir: crate_dir.into(),
            arch: Arch::Sm80,
            features: Vec::new(),
            copy_to: None,
            target_dir: None,
            source: None,
            toolchain: None,
        }
    }

    /// Sets the GPU architecture. The default is [`Arch::Sm80`].
    pub fn arch(mut self, arch: Arch) -> CudaBuilder {
        self.arch = arch;
        self
    }

    /// Enables a feature of the crate. The PTX of each set of features has its own file in `prebuilt/`.
    pub fn feature(mut self, feature: impl Into<String>) -> CudaBuilder {
        self.features.push(feature.into());
        self
    }

    /// Also writes the PTX to this file, and its record next to it with the extension `inputs`. Together they can go to
    /// `prebuilt/`.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> CudaBuilder {
        self.copy_to = Some(path.into());
        self
    }

    /// Sets cargo's target directory for the device. The default is `device` in `OUT_DIR`. Never pass the outer build's
    /// own target directory: that build holds its lock.
    pub fn target_dir(mut self, path: impl Into<PathBuf>) -> CudaBuilder {
        self.target_dir = Some(path.into());
        self
    }

    /// Sets the source of the PTX. The default is the value of [`SOURCE_VARIABLE`].
    pub fn source(mut self, source: Source) -> CudaBuilder {
        self.source = Some(source);
        self
    }

    /// Sets the compiler to use, or `None` for a build without a compiler. By default the builder searches for one.
    pub fn toolchain(mut self, toolchain: Option<Toolchain>) -> CudaBuilder {
        self.toolchain = Some(toolchain);
        self
    }

    /// Compiles the PTX or takes it from `prebuilt/`. In a build script, also tells cargo when to rerun the script.
    pub fn build(self) -> Result<Built, Error> {
        let source = self.source.map_or_else(Source::from_env, Ok)?;
        let inputs = inputs::BuildInputs::of(&self.crate_dir, self.arch, &self.features)?;
        let prebuilt = self.prebuilt_path();
        if env::var_os("OUT_DIR").is_some() {
            println!("cargo:rerun-if-env-changed={SOURCE_VARIABLE}");
            println!("cargo:rerun-if-env-changed={RUSTC_VARIABLE}");
            println!("cargo:rerun-if-changed={}", prebuilt.display());
            println!("cargo:rerun-if-changed={}", self.record_path().display());
            inputs.watched().iter().for_each(|path| println!("cargo:rerun-if-changed={}", path.display()));
        }
        let built = match source {
            Source::Build => self.compile(&inputs, &prebuilt)?,
            Source::Prebuilt => match self.matching(&inputs, &prebuilt)? {
                Some(built) => built,
                None => return Err(Error::Stale { prebuilt }),
            },
            Source::Auto => match self.matching(&inputs, &prebuilt)? {
                Some(built) => built,
                None => self.compile(&inputs, &prebuilt)?,
            },
        };
        if let Some(path) = &self.copy_to {
            fs::write(path, &built.ptx).map_err(Error::io(path))?;
            let record = path.with_extension("inputs");
            fs::write(&record, &built.record).map_err(Error::io(&record))?;
        }
        Ok(built)
    }

    /// Returns the path of this build's PTX in `prebuilt/`.
    pub fn prebuilt_path(&self) -> PathBuf {
        let mut name = self.features.clone();
        name.push(self.arch.name().into());
        self.crate_dir.join("prebuilt").join(name.join(".") + ".ptx")
    }

    /// Returns the path of the record next to the prebuilt PTX: the hash of its inputs, and the compiler that made it.
    fn record_path(&self) -> PathBuf {
        self.prebuilt_path().with_extension("inputs")
    }

    /// Returns the prebuilt PTX if it exists and its record has the hash of these inputs.
    fn matching(&self, inputs: &inputs::BuildInputs, path: &Path) -> Result<Option<Built>, Error> {
        let Some(record) = read_if_there(&self.record_path())? else { return Ok(None) };
        if record::value(&record, "inputs") != Some(inputs.hash()) {
            return Ok(None);
        }
        Ok(read_if_there(path)?.map(|ptx| Built { ptx, origin: Origin::Prebuilt(path.to_owned()), record }))
    }

    /// Compiles the PTX into `prebuilt/`, with its record. Does not write the PTX if it is unchanged.
    ///
    /// # Errors
    /// Fails if the PTX cannot be compiled or the files cannot be written.
    pub fn save_prebuilt(self) -> Result<Built, Error> {
        let inputs = inputs::BuildInputs::of(&self.crate_dir, self.arch, &self.features)?;
        let path = self.prebuilt_path();
        let built = self.compile(&inputs, &path)?;
        if read_if_there(&path)?.as_ref() != Some(&built.ptx) {
            fs::write(&path, &built.ptx).map_err(Error::io(&path))?;
        }
        let record = self.record_path();
        fs::write(&record, &built.record).map_err(Error::io(&record))?;
        Ok(built)
    }

    /// Returns the version of the compiler that made the prebuilt PTX, or `None` without a record.
    ///
    /// # Errors
    /// Fails if the record cannot be read.
    pub fn prebuilt_compiler(&self) -> Result<Option<String>, Error> {
        Ok(read_if_there(&self.record_path())?.and_then(|text| record::value(&text, "compiler").map(str::to_owned)))
    }

    fn compile(&self, inputs: &inputs::BuildInputs, prebuilt: &Path) -> Result<Built, Error> {
        let found = self.toolchain.clone().map_or_else(Toolchain::find, Ok)?;
        let toolchain = found.ok_or_else(|| Error::NoToolchain { prebuilt: prebuilt.to_owned() })?;
        let target_dir = match (&self.target_dir, env::var_os("OUT_DIR")) {
            (Some(dir), _) => dir.clone(),
            (None, Some(out)) => Path::new(&out).join("device"),
            (None, None) => return Err(Error::NoTargetDir),
        };
        let job = compile::CargoRun {
            toolchain: &toolchain,
            crate_dir: &self.crate_dir,
            packages: inputs.packages(),
            arch: self.arch,
            features: &self.features,
            target_dir: &target_dir,
        };
        let ptx = finish::finish(&job.run()?, self.arch)?;
        let record = record::text(inputs.hash(), toolchain.version());
        Ok(Built { ptx, origin: Origin::Compiled(toolchain.version().into()), record })
    }
}

/// Reads a text file. Returns `None` if it does not exist.
fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path)(error)),
    }
}
