//! Compiles the PTX in the `prebuilt/` folders of this repository again.
//!
//! ```text
//! cargo run -p quire-cuda-builder                 compile it with the first compiler found
//! cargo run -p quire-cuda-builder -- --check      fail if the sources have changed since, or if the same compiler is
//!                                                 installed and produces different PTX
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cuda_builder::{Arch, CudaBuilder, Error, Source, Toolchain};

/// The kernel crates of this repository.
const CRATES: [&str; 3] = ["kernels", "toolkit/intrinsics", "examples"];

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(_) => {
            eprintln!("usage: prebuild [--check]");
            return ExitCode::FAILURE;
        }
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = repository.join("target/device");
    let mut good = true;
    for arch in Arch::ALL {
        for name in CRATES {
            let builder = CudaBuilder::new(repository.join(name)).arch(arch).target_dir(&target);
            let path = builder.prebuilt_path();
            let result = if check { verify(builder) } else { builder.save_prebuilt().map(|_| "compiled") };
            match result {
                Ok(what) => println!("{}: {what}", shown(&path).display()),
                Err(error) => {
                    eprintln!("{error}");
                    good = false;
                }
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn verify(builder: CudaBuilder) -> Result<&'static str, Error> {
    let prebuilt = builder.clone().source(Source::Prebuilt).build()?;
    let Some(toolchain) = Toolchain::find()? else {
        return Ok("up to date; not compiled for comparison, because no compiler for kernels was found");
    };
    let compiled = builder.clone().source(Source::Build).toolchain(Some(toolchain.clone())).build()?;
    if compiled.ptx == prebuilt.ptx {
        return Ok("up to date, and identical to the compiler's output");
    }
    if builder.prebuilt_compiler()?.as_deref() == Some(toolchain.version()) {
        return Err(Error::Unexpected(format!(
            "{} differs from the output of {} for the current sources",
            shown(&builder.prebuilt_path()).display(),
            toolchain.version()
        )));
    }
    Ok("up to date, and the sources compile; another compiler made it, so the text may differ")
}

/// Returns the last three components of the path, for messages.
fn shown(path: &Path) -> PathBuf {
    let mut parts = path.components().rev().take(3).collect::<Vec<_>>();
    parts.reverse();
    parts.into_iter().collect()
}
