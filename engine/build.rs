//! The kernels' PTX, for `backend::cuda::ptx` to embed: compiled, or taken from `kernels/prebuilt/`; as two images, one of
//! what the engine runs and one of the paper's kernels; and compressed, since it is text. The texts for all kinds of GPU are
//! compressed as one, because they differ in little.

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cuda_builder::{Arch, CudaBuilder, ptx};
use lzma_rust2::{LzmaOptions, LzmaWriter};

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
    let mut built = Vec::new();
    for arch in Arch::ALL {
        built.push(CudaBuilder::new("../kernels").arch(arch).build()?.ptx);
    }
    for (image, papers) in [("engine", false), ("paper", true)] {
        let texts: Vec<_> =
            built.iter().map(|ptx| ptx::with_entries(ptx, |entry| is_papers(entry) == papers)).collect();
        fs::write(out.join(format!("{image}.ptx.lzma")), compressed(texts.join(END).as_bytes())?)?;
    }
    Ok(())
}

/// What stands between the texts for two kinds of GPU.
const END: &str = "\0";

/// A text, compressed: well in a release, and quickly in development.
fn compressed(text: &[u8]) -> io::Result<Vec<u8>> {
    let preset = if env::var("PROFILE").as_deref() == Ok("release") { 6 } else { 1 };
    // A kernel for one kind of GPU is found again among those of another, however far it is away.
    let options = LzmaOptions { dict_size: 1 << 25, ..LzmaOptions::with_preset(preset) };
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
    writer.write_all(text)?;
    writer.finish()
}

/// Whether an entry is one of `kernels::attention::paper`; a test compares the images with the crate's own list.
fn is_papers(entry: &str) -> bool {
    ["paged_attention_v1", "paged_attention_v2", "paper_"].iter().any(|name| entry.starts_with(name))
}
