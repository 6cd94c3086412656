//! `ptxas`, the assembler for PTX: a program of NVIDIA's, in the CUDA toolkit and in the wheel `nvidia-cuda-nvcc` on PyPI.

use std::env;
use std::ffi::OsString;
use std::process::Command;

/// The program that `QUIRE_PTXAS` names, or the one on the path. Without either a note says that the test does nothing.
pub fn find() -> Option<OsString> {
    if let Some(named) = env::var_os("QUIRE_PTXAS").filter(|v| !v.is_empty()) {
        return Some(named);
    }
    if Command::new("ptxas").arg("--version").output().is_ok() {
        return Some("ptxas".into());
    }
    // Straight to the terminal: the harness would keep a passing test's output to itself.
    let note = "\n*** SKIPPED: ptxas is not here, so that it checks no PTX, registers or spills. It comes with \
                `pip install nvidia-cuda-nvcc`; put it on the path, or name it in QUIRE_PTXAS. ***\n";
    let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
    None
}
