//! `ptxas`, NVIDIA's assembler for PTX. It is in the CUDA toolkit and in the wheel `nvidia-cuda-nvcc` on PyPI.

use std::env;
use std::ffi::OsString;
use std::process::Command;

/// Returns the program that `QUIRE_PTXAS` names, or the one on the path. Without either, prints a note that the test
/// does nothing.
pub fn find() -> Option<OsString> {
    if let Some(named) = env::var_os("QUIRE_PTXAS").filter(|v| !v.is_empty()) {
        return Some(named);
    }
    if Command::new("ptxas").arg("--version").output().is_ok() {
        return Some("ptxas".into());
    }
    // Written straight to the terminal, since the harness hides the output of a passing test.
    let note = "\n*** SKIPPED: ptxas was not found, so PTX, registers and spills are not checked. Install it with \
                `pip install nvidia-cuda-nvcc`, and put it on the path or name it in QUIRE_PTXAS. ***\n";
    let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
    None
}
