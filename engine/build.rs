//! The kernels' PTX, for `backend::cuda::ptx` to embed: compiled, or taken from `kernels/prebuilt/`; as two images, one of
//! what the engine runs and one of the paper's kernels; and compressed, since it is text.

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use cuda_builder::{Arch, CudaBuilder, ptx};
use flate2::Compression;
use flate2::write::ZlibEncoder;

fn main() -> ExitCode {
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match images() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn images() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("build scripts are run by cargo, which sets OUT_DIR")?);
    for arch in Arch::ALL {
        let built = CudaBuilder::new("../kernels").arch(arch).build()?;
        for (image, papers) in [("engine", false), ("paper", true)] {
            let file = File::create(out.join(format!("{image}.{arch}.ptx.zlib")))?;
            let mut encoder = ZlibEncoder::new(file, Compression::default());
            encoder.write_all(ptx::with_entries(&built.ptx, |entry| is_papers(entry) == papers).as_bytes())?;
            encoder.finish()?;
        }
    }
    Ok(())
}

/// Whether an entry is one of `kernels::attention::paper`; a test compares the images with the crate's own list.
fn is_papers(entry: &str) -> bool {
    ["paged_attention_v1", "paged_attention_v2", "paper_"].iter().any(|name| entry.starts_with(name))
}
