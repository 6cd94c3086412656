//! Compiles a crate of kernels to PTX, from a build script:
//!
//! ```no_run
//! # use cuda_builder::{Arch, CudaBuilder};
//! let built = CudaBuilder::new("../kernels").arch(Arch::Sm90a).copy_to("kernels.ptx").build();
//! ```
//!
//! The name and the shape of the interface are those of Rust-CUDA's `cuda_builder`; the implementation is Quire's own.
//! It runs cargo on the crate for rustc's `nvptx64-nvidia-cuda` target, or takes the PTX that lies beside the sources in
//! `prebuilt/` if it was made from these very sources; the crate's README says when it does which.
//!
//! The crate of kernels may depend on others by path, from a registry or from git. Cargo is asked which these are.

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

/// The environment variable that says where PTX is to come from: `auto`, `build` or `prebuilt`.
pub const SOURCE_VARIABLE: &str = "QUIRE_PTX";

/// The environment variable that names the compiler for kernels.
pub const RUSTC_VARIABLE: &str = "QUIRE_DEVICE_RUSTC";

/// The GPU that PTX is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// Ampere and everything after it.
    Sm80,
    /// Hopper, and only it: kernels that exist for it alone use what later GPUs do not have.
    Sm90a,
}

impl Arch {
    /// All of them.
    pub const ALL: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

    /// As compilers name it.
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

/// Where PTX is to come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// `prebuilt/` if it was made from these sources, else a compiler.
    #[default]
    Auto,
    /// A compiler.
    Build,
    /// `prebuilt/`, which must have been made from these sources.
    Prebuilt,
}

impl Source {
    /// What [`SOURCE_VARIABLE`] says.
    pub fn from_env() -> Result<Source, Error> {
        match env::var(SOURCE_VARIABLE).as_deref() {
            Err(env::VarError::NotPresent) | Ok("" | "auto") => Ok(Source::Auto),
            Ok("build") => Ok(Source::Build),
            Ok("prebuilt") => Ok(Source::Prebuilt),
            _ => Err(Error::UnknownSource),
        }
    }
}

/// Where PTX did come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From this file.
    Prebuilt(PathBuf),
    /// From the compiler of this version.
    Compiled(String),
}

/// What a build gives.
#[derive(Clone, Debug)]
pub struct Built {
    /// The PTX, with its header.
    pub ptx: String,
    /// Where it came from.
    pub origin: Origin,
}

/// The hash of everything that goes into the PTX of the crate in `crate_dir`: the record next to prebuilt PTX has it.
pub fn input_hash(crate_dir: &Path, arch: Arch, features: &[String]) -> Result<String, Error> {
    inputs::BuildInputs::of(crate_dir, arch, features).map(|inputs| inputs.hash().to_owned())
}

/// Builds the PTX of a crate of kernels.
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
    /// A build of the crate in this directory, relative to the current one: the package's, in a build script.
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

    /// For this GPU; [`Arch::Sm80`] if not given.
    pub fn arch(mut self, arch: Arch) -> CudaBuilder {
        self.arch = arch;
        self
    }

    /// With this feature of the crate. The PTX of each set of features has a file of its own in `prebuilt/`.
    pub fn feature(mut self, feature: impl Into<String>) -> CudaBuilder {
        self.features.push(feature.into());
        self
    }

    /// Writes the PTX to this file, too.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> CudaBuilder {
        self.copy_to = Some(path.into());
        self
    }

    /// Where cargo keeps what it compiles for the device: `device` under `OUT_DIR` if not given. It is never the outer
    /// build's own directory, whose lock that build holds.
    pub fn target_dir(mut self, path: impl Into<PathBuf>) -> CudaBuilder {
        self.target_dir = Some(path.into());
        self
    }

    /// Where the PTX is to come from; what [`SOURCE_VARIABLE`] says if not given.
    pub fn source(mut self, source: Source) -> CudaBuilder {
        self.source = Some(source);
        self
    }

    /// The compiler to use, or that there is none; searched for if not given.
    pub fn toolchain(mut self, toolchain: Option<Toolchain>) -> CudaBuilder {
        self.toolchain = Some(toolchain);
        self
    }

    /// Builds the PTX, or finds it. In a build script it also tells cargo when to come back.
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
        }
        Ok(built)
    }

    /// The file in `prebuilt/` that has the PTX of this build.
    pub fn prebuilt_path(&self) -> PathBuf {
        let mut name = self.features.clone();
        name.push(self.arch.name().into());
        self.crate_dir.join("prebuilt").join(name.join(".") + ".ptx")
    }

    /// The record next to the prebuilt PTX: the hash of its inputs, and the compiler that made it.
    fn record_path(&self) -> PathBuf {
        self.prebuilt_path().with_extension("inputs")
    }

    /// The prebuilt PTX, if it exists and its record has the hash of these inputs.
    fn matching(&self, inputs: &inputs::BuildInputs, path: &Path) -> Result<Option<Built>, Error> {
        let Some(record) = read_if_there(&self.record_path())? else { return Ok(None) };
        if record::value(&record, "inputs") != Some(inputs.hash()) {
            return Ok(None);
        }
        Ok(read_if_there(path)?.map(|ptx| Built { ptx, origin: Origin::Prebuilt(path.to_owned()) }))
    }

    /// Compiles the PTX into `prebuilt/`, with its record. Leaves the text alone if it did not change.
    ///
    /// # Errors
    /// If the PTX cannot be compiled, or the files cannot be written.
    pub fn save_prebuilt(self) -> Result<Built, Error> {
        let inputs = inputs::BuildInputs::of(&self.crate_dir, self.arch, &self.features)?;
        let path = self.prebuilt_path();
        let built = self.compile(&inputs, &path)?;
        if read_if_there(&path)?.as_ref() != Some(&built.ptx) {
            fs::write(&path, &built.ptx).map_err(Error::io(&path))?;
        }
        if let Origin::Compiled(compiler) = &built.origin {
            let path = self.record_path();
            fs::write(&path, record::text(inputs.hash(), compiler)).map_err(Error::io(&path))?;
        }
        Ok(built)
    }

    /// The version of the compiler that made the prebuilt PTX; `None` without a record.
    ///
    /// # Errors
    /// If the record cannot be read.
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
        Ok(Built { ptx, origin: Origin::Compiled(toolchain.version().into()) })
    }
}

/// The contents of a text file; `None` if it does not exist.
fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path)(error)),
    }
}
