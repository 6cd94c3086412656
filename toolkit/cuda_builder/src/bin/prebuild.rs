//! Makes the PTX in the `prebuilt/` folders of this repository anew.
//!
//! ```text
//! cargo run -p quire-cuda-builder                 make it, with whatever compiler is found
//! cargo run -p quire-cuda-builder -- --check      fail if it is not of the present sources, or if the compiler that
//!                                                 made it is here and makes something else of them
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cuda_builder::{Arch, CudaBuilder, Error, Source, Toolchain};

/// The crates of kernels.
const CRATES: [&str; 3] = ["kernels", "toolkit/vocabulary", "examples"];

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
            let result = if check { verify(builder) } else { builder.save_prebuilt().map(|_| "made") };
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
        return Ok("of the present sources; not compiled for comparison, as there is no compiler for kernels");
    };
    let compiled = builder.clone().source(Source::Build).toolchain(Some(toolchain.clone())).build()?;
    if compiled.ptx == prebuilt.ptx {
        return Ok("of the present sources, and what the compiler makes of them");
    }
    if builder.prebuilt_compiler()?.as_deref() == Some(toolchain.version()) {
        return Err(Error::Unexpected(format!(
            "{} is not what {} makes of the present sources",
            shown(&builder.prebuilt_path()).display(),
            toolchain.version()
        )));
    }
    Ok("of the present sources, which compile; another compiler made it, so that the text may differ")
}

/// The path as one would type it.
fn shown(path: &Path) -> PathBuf {
    let mut parts = path.components().rev().take(3).collect::<Vec<_>>();
    parts.reverse();
    parts.into_iter().collect()
}
