//! Builds the kernels' PTX for `backend::cuda::ptx` to embed: compiles it, or takes it from `kernels/prebuilt/`. Writes
//! two images, one of the engine's kernels and one of the paper's. They are compressed because PTX is text. The texts
//! for all kinds of GPU are compressed together, because they are similar.

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
    for (image, paper) in [("engine", false), ("paper", true)] {
        let texts: Vec<_> =
            built.iter().map(|ptx| ptx::with_entries(ptx, |entry| is_paper_kernel(entry) == paper)).collect();
        fs::write(out.join(format!("{image}.ptx.lzma")), compressed(texts.join(END).as_bytes())?)?;
    }
    Ok(())
}

/// Separates the texts for two kinds of GPU.
const END: &str = "\0";

/// Compresses a text: well for a release, quickly for development.
fn compressed(text: &[u8]) -> io::Result<Vec<u8>> {
    let preset = if env::var("PROFILE").as_deref() == Ok("release") { 6 } else { 1 };
    // The dictionary covers the whole text, so a kernel compresses against its version for another GPU.
    let options = LzmaOptions { dict_size: 1 << 25, ..LzmaOptions::with_preset(preset) };
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
    writer.write_all(text)?;
    writer.finish()
}

/// Whether an entry is in `kernels::attention::paper`. A test compares the images with the crate's own list.
fn is_paper_kernel(entry: &str) -> bool {
    ["paged_attention_v1", "paged_attention_v2", "paper_"].iter().any(|name| entry.starts_with(name))
}
