//! What the tensor cores' loops are made of: SASS, by `nvdisasm`, a program of NVIDIA's, in the CUDA toolkit and in the wheel
//! `nvidia-cuda-nvdisasm` on PyPI.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Instructions of the tensor cores.
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

/// The instructions of an object file, as text.
pub fn disassembled(nvdisasm: &OsString, cubin: &Path) -> String {
    let output = Command::new(nvdisasm).arg("-c").arg(cubin).output().expect("nvdisasm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The kernels of a text, each with its lines.
fn kernels(text: &str) -> impl Iterator<Item = (&str, impl Iterator<Item = &str>)> {
    text.split(".section\t.text.").skip(1).map(|section| {
        let (kernel, body) = section.split_once(',').unwrap_or_default();
        (kernel, body.lines().skip(1).map(str::trim).take_while(|line| !line.starts_with(".section\t")))
    })
}

/// The instruction of a line, with what it is predicated by.
fn instruction(line: &str) -> Option<&str> {
    line.strip_prefix("/*").and_then(|line| line.split_once("*/")).map(|(_, instruction)| instruction)
}

/// An instruction's name, with all of its forms.
fn name(instruction: &str) -> &str {
    instruction.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default()
}

/// Accesses to memory, other than a block's own, ahead of a kernel's wait for earlier launches, or all if it has none: the kernel's
/// name and the instruction's.
pub fn early_accesses(text: &str) -> Vec<(&str, &str)> {
    const ACCESSES: [&str; 9] = ["LD", "ST", "LDG", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "UTMALDG"];
    let early = kernels(text).flat_map(|(kernel, lines)| {
        let all: Vec<_> = lines.filter_map(instruction).map(name).collect();
        let wait = all.iter().position(|name| *name == "ACQBULK").unwrap_or(all.len());
        let is_access = |name: &&str| name.split('.').next().is_some_and(|first| ACCESSES.contains(&first));
        all.into_iter().take(wait).filter(is_access).map(|name| (kernel, name)).collect::<Vec<_>>()
    });
    early.collect()
}

/// The loops of all kernels of a text, in its order.
pub fn matrix_loops(text: &str) -> Vec<MatrixLoop> {
    let mut all = Vec::new();
    for (kernel, lines) in kernels(text) {
        let (mut instructions, mut labels, mut loops) = (Vec::new(), HashMap::new(), Vec::new());
        for line in lines {
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
                labels.insert(label, instructions.len());
            } else if let Some(instruction) = instruction(line) {
                instructions.push(name(instruction));
                // A branch to what was there before is a loop.
                let target = instruction.split_once("`(").and_then(|(_, rest)| rest.split_once(')'));
                if let Some(&begin) = target.and_then(|(label, _)| labels.get(label)) {
                    loops.push(begin..instructions.len());
                }
            }
        }
        let count = |at: std::ops::Range<usize>| {
            let of = |name: &str| instructions[at.clone()].iter().filter(|i| i.split('.').next() == Some(name)).count();
            let (matrix, name) = MATRIX.map(|name| (of(name), name)).into_iter().max_by_key(|found| found.0)?;
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
                .L_x_3:\n /*0060*/ BRA `(.L_x_3) ;\n\t.section\t.text.copy,\"ax\",@progbits\n /*0000*/ EXIT ;\n";
    let product = MatrixLoop { kernel: "product".into(), instructions: 3, matrix: 2, name: "HMMA" };
    assert_eq!(matrix_loops(text), [product]);
}

#[test]
fn an_access_ahead_of_the_wait_is_found() {
    let text = "\t.section\t.text.copy,\"ax\",@progbits\n /*0000*/ LDC R0, c[0x0][0x28] ;\n /*0010*/ @P0 LDG.E R2, desc[UR4][R2.64] ;\n \
                /*0020*/ ACQBULK ;\n /*0030*/ STG.E desc[UR4][R4.64], R2 ;\n\t.section\t.text.none,\"ax\",@progbits\n \
                /*0000*/ STG.E desc[UR4][R4.64], R2 ;\n";
    assert_eq!(early_accesses(text), [("copy", "LDG.E"), ("none", "STG.E")]);
}
