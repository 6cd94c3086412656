//! Compiles the kernels to PTX, which `main.rs` embeds.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use cuda_builder::{Arch, CudaBuilder};

fn main() -> ExitCode {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    match CudaBuilder::new("../kernels").arch(Arch::Sm80).copy_to(out.join("kernels.ptx")).build() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
