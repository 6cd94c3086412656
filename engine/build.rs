//! The kernels' PTX, for `backend::cuda::ptx` to embed: compiled, or taken from `kernels/prebuilt/`.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use cuda_builder::{Arch, CudaBuilder};

fn main() -> ExitCode {
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        eprintln!("error: build scripts are run by cargo, which sets OUT_DIR");
        return ExitCode::FAILURE;
    };
    for arch in Arch::ALL {
        let ptx = out.join(arch.name()).with_extension("ptx");
        if let Err(error) = CudaBuilder::new("../kernels").arch(arch).copy_to(ptx).build() {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
