//! What the tensor cores' loops are made of: SASS, by `nvdisasm`, a program of NVIDIA's, in the CUDA toolkit and in the wheel
//! `nvidia-cuda-nvdisasm` on PyPI.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Instructions of the tensor cores. A kernel's are the first that it has any of: what has `HGMMA`s may add to their sums by `HMMA`.
const MATRIX: [&str; 3] = ["HGMMA", "HMMA", "IMMA"];

/// The loop of a kernel in which most is done on the tensor cores; of several the shortest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixLoop {
    pub kernel: String,
    pub instructions: usize,
    /// How many of them are the tensor cores'.
    pub matrix: usize,
    /// Their name.
    pub name: &'static str,
}

/// The program that `QUIRE_NVDISASM` names, or the one on the path. Without either a note says what is left out.
pub fn find() -> Option<OsString> {
    if let Some(named) = env::var_os("QUIRE_NVDISASM").filter(|v| !v.is_empty()) {
        return Some(named);
    }
    if Command::new("nvdisasm").arg("--version").output().is_ok() {
        return Some("nvdisasm".into());
    }
    let note = "\n*** SKIPPED: nvdisasm is not here, so that loops on the tensor cores are not counted. It comes with `pip \
                install nvidia-cuda-nvdisasm`; put it on the path, or name it in QUIRE_NVDISASM. ***\n";
    let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
    None
}

/// The loops of all kernels of an object file, in its order.
pub fn matrix_loops(nvdisasm: &OsString, cubin: &Path) -> Vec<MatrixLoop> {
    let output = Command::new(nvdisasm).arg("-c").arg(cubin).output().expect("nvdisasm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    loops_of(&String::from_utf8_lossy(&output.stdout))
}

fn loops_of(text: &str) -> Vec<MatrixLoop> {
    let mut all = Vec::new();
    for section in text.split(".section\t.text.").skip(1) {
        let (kernel, body) = section.split_once(',').unwrap_or_default();
        let (mut instructions, mut labels, mut loops) = (Vec::new(), HashMap::new(), Vec::new());
        for line in body.lines().skip(1).map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
                labels.insert(label, instructions.len());
            } else if let Some((_, instruction)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) {
                let words = instruction.split_whitespace().find(|word| !word.starts_with('@'));
                instructions.push(words.unwrap_or_default());
                // A branch to what was there before is a loop.
                let target = instruction.split_once("`(").and_then(|(_, rest)| rest.split_once(')'));
                if let Some(&begin) = target.and_then(|(label, _)| labels.get(label)) {
                    loops.push(begin..instructions.len());
                }
            } else if line.starts_with(".section\t") {
                break;
            }
        }
        let of = |at: std::ops::Range<usize>, name: &str| {
            instructions[at].iter().filter(|i| i.split('.').next() == Some(name)).count()
        };
        let Some(name) = MATRIX.into_iter().find(|name| of(0..instructions.len(), name) > 0) else { continue };
        let count = |at: std::ops::Range<usize>| {
            let matrix = of(at.clone(), name);
            let found = MatrixLoop { kernel: kernel.to_owned(), instructions: at.len(), matrix, name };
            (matrix > 0).then_some((at, found))
        };
        let found: Vec<_> = loops.into_iter().filter_map(count).collect();
        let has_another_inside = |at: &std::ops::Range<usize>| {
            found.iter().any(|(inner, _)| inner != at && at.start <= inner.start && inner.end <= at.end)
        };
        let innermost = found.iter().filter(|(at, _)| !has_another_inside(at)).map(|(_, found)| found);
        all.extend(innermost.max_by_key(|found| (found.matrix, std::cmp::Reverse(found.instructions))).cloned());
    }
    all
}

#[test]
fn the_loop_with_the_tensor_cores_is_found() {
    let text = "\t.section\t.text.product,\"ax\",@progbits\n.L_x_1:\n /*0000*/ LDS R0, [R1] ;\n.L_x_2:\n /*0010*/ HMMA.16816.F32 R0, R1, R2, R0 ;\n \
                /*0020*/ HMMA.16816.F32 R0, R1, R2, R0 ;\n /*0030*/ @P0 BRA `(.L_x_2) ;\n /*0040*/ @!P1 BRA `(.L_x_1) ;\n /*0050*/ EXIT ;\n\
                .L_x_3:\n /*0060*/ IMMA.16816.S8 R0, R1, R2, R0 ;\n /*0060*/ IMMA.16816.S8 R0, R1, R2, R0 ;\n \
                /*0060*/ IMMA.16816.S8 R0, R1, R2, R0 ;\n /*0070*/ BRA `(.L_x_3) ;\n\t.section\t.text.copy,\"ax\",@progbits\n /*0000*/ EXIT ;\n";
    let product = MatrixLoop { kernel: "product".into(), instructions: 3, matrix: 2, name: "HMMA" };
    assert_eq!(loops_of(text), [product]);
}
