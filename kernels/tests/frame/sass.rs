//! Analyses the tensor-core loops of kernels in SASS. It uses `nvdisasm`, NVIDIA's disassembler, which is in the CUDA
//! toolkit and in the wheel `nvidia-cuda-nvdisasm` on PyPI.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// Tensor-core instructions. Only the first of these that a kernel has is counted, since a kernel with `HGMMA` may use
/// `HMMA` only to add to the sums.
const MATRIX: [&str; 3] = ["HGMMA", "HMMA", "IMMA"];

/// Asynchronous copies of a warp, 16 bytes a lane.
const COPY: &str = "LDGSTS";

/// The innermost loop of a kernel with the most tensor-core instructions, or the shortest of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixLoop {
    pub kernel: String,
    pub instructions: usize,
    /// How many of them are tensor-core instructions.
    pub matrix: usize,
    /// Name of the tensor-core instruction.
    pub name: &'static str,
    /// How many of them are asynchronous copies.
    pub copies: usize,
    /// Instructions on the shortest path through the loop that has all of these. It jumps over code that few tiles
    /// need.
    pub least: usize,
}

/// Returns the program that `QUIRE_NVDISASM` names, or the one on the path. Without either, prints a note about the
/// omitted checks.
pub fn find() -> Option<OsString> {
    if let Some(named) = env::var_os("QUIRE_NVDISASM").filter(|v| !v.is_empty()) {
        return Some(named);
    }
    if Command::new("nvdisasm").arg("--version").output().is_ok() {
        return Some("nvdisasm".into());
    }
    let note = "\n*** SKIPPED: nvdisasm was not found, so loops on the tensor cores are not counted. Install it with `pip \
                install nvidia-cuda-nvdisasm`, and put it on the path or name it in QUIRE_NVDISASM. ***\n";
    let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
    None
}

/// Returns the instructions of an object file, as text.
pub fn disassembly(nvdisasm: &OsString, cubin: &Path) -> String {
    let output = Command::new(nvdisasm).arg("-c").arg(cubin).output().expect("nvdisasm starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the kernels in a text, in order.
fn kernels(text: &str) -> impl Iterator<Item = (&str, Code<'_>)> {
    text.split(".section\t.text.").skip(1).map(|section| {
        let (kernel, body) = section.split_once(',').unwrap_or_default();
        (kernel, Code::of(body))
    })
}

/// Returns memory accesses that precede a kernel's wait for earlier launches, as the names of kernel and instruction.
/// Accesses to a block's own memory are left out. Without a wait, all accesses count.
pub fn early_accesses(text: &str) -> Vec<(&str, &str)> {
    const ACCESSES: [&str; 9] = ["LD", "ST", "LDG", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "UTMALDG"];
    let early = kernels(text).flat_map(|(kernel, code)| {
        let ahead = code.names.into_iter().take_while(|name| *name != "ACQBULK");
        ahead.filter(|name| ACCESSES.contains(name)).map(move |name| (kernel, name))
    });
    early.collect()
}

/// Returns the loops of all kernels in a text, in order.
pub fn matrix_loops(text: &str) -> Vec<MatrixLoop> {
    loops_of(text, &MATRIX)
}

/// Does the same as [`matrix_loops`]. If no kernel uses the tensor cores, returns the loops with the most
/// multiplications in `f32`.
pub fn product_loops(text: &str) -> Vec<MatrixLoop> {
    let found = matrix_loops(text);
    if found.is_empty() { loops_of(text, &["FFMA"]) } else { found }
}

/// Returns each kernel's loop with the most instructions of one name: the first of these names that the kernel
/// contains.
fn loops_of(text: &str, names: &[&'static str]) -> Vec<MatrixLoop> {
    let mut all = Vec::new();
    for (kernel, code) in kernels(text) {
        let Some(name) = names.iter().find(|name| code.names.contains(name)).copied() else { continue };
        let count = |at: Range<usize>| {
            let (matrix, copies, least) =
                (code.count(&at, name), code.count(&at, COPY), code.least(&at, &[name, COPY]));
            let (kernel, instructions) = (kernel.to_owned(), at.len());
            (matrix > 0).then_some((at, MatrixLoop { kernel, instructions, matrix, name, copies, least }))
        };
        let found: Vec<_> = code.loops().into_iter().filter_map(count).collect();
        let has_another_inside = |at: &Range<usize>| {
            found.iter().any(|(inner, _)| inner != at && at.start <= inner.start && inner.end <= at.end)
        };
        let innermost = found.iter().filter(|(at, _)| !has_another_inside(at)).map(|(_, found)| found);
        all.extend(innermost.max_by_key(|found| (found.matrix, Reverse(found.instructions))).cloned());
    }
    all
}

/// The instructions of a kernel.
struct Code<'a> {
    /// The first word of each instruction, up to its first dot.
    names: Vec<&'a str>,
    /// The target of each branch, by the branch's index.
    branches: HashMap<usize, usize>,
    /// Indices of the instructions that never continue with the next one.
    ends: Vec<usize>,
}

impl<'a> Code<'a> {
    fn of(body: &'a str) -> Self {
        let (mut names, mut labels, mut to_labels, mut ends) = (Vec::new(), HashMap::new(), Vec::new(), Vec::new());
        for line in body.lines().skip(1).map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
                labels.insert(label, names.len());
            } else if let Some((_, instruction)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) {
                let mut words = instruction.split_whitespace().filter(|word| !word.starts_with('@'));
                let name = words.next().unwrap_or_default().split('.').next().unwrap_or_default();
                let target = instruction.split_once("`(").and_then(|(_, rest)| rest.split_once(')'));
                if let Some((label, _)) = target {
                    to_labels.push((names.len(), label));
                }
                // A branch's condition precedes the branch or its target.
                let always = !instruction.contains('@') && words.next().is_none_or(|word| word.starts_with(['`', ';']));
                if always && matches!(name, "BRA" | "EXIT") {
                    ends.push(names.len());
                }
                names.push(name);
            } else if line.starts_with(".section\t") {
                break;
            }
        }
        let branches = to_labels.into_iter().filter_map(|(at, label)| Some((at, *labels.get(label)?))).collect();
        Self { names, branches, ends }
    }

    /// Returns the loops, each from the target of a backward branch to the branch. An unconditional branch from after
    /// another loop into it is not a loop. It returns from code that the assembler moved out of line, such as a poll.
    fn loops(&self) -> Vec<Range<usize>> {
        let back = self.branches.iter().filter(|(from, to)| to <= from).map(|(from, to)| *to..from + 1);
        let (mut always, mut loops): (Vec<_>, Vec<_>) = back.partition(|at| self.ends.contains(&(at.end - 1)));
        let into = |at: &Range<usize>, other: &Range<usize>| {
            other.contains(&at.start) && other.end < at.end && other.start < at.start
        };
        always.retain(|at| !loops.iter().any(|other| into(at, other)));
        loops.append(&mut always);
        loops.sort_by_key(|at| (at.end, at.start));
        loops
    }

    fn count(&self, at: &Range<usize>, name: &str) -> usize {
        self.names[at.clone()].iter().filter(|found| **found == name).count()
    }

    /// Returns the length of the shortest forward path through a loop, among the paths with the most instructions in
    /// `work`.
    fn least(&self, at: &Range<usize>, work: &[&str]) -> usize {
        // For each instruction: the most work before it on a path, and the fewest instructions of such a path.
        let mut best: HashMap<usize, (Reverse<usize>, usize)> = HashMap::from([(at.start, (Reverse(0), 0))]);
        for here in at.clone() {
            let Some(&(Reverse(done), length)) = best.get(&here) else { continue };
            let way = (Reverse(done + usize::from(work.contains(&self.names[here]))), length + 1);
            let jump = self.branches.get(&here).copied().filter(|to| *to > here && self.names[here] == "BRA");
            let last = here + 1 == at.end;
            let next = (last || !self.ends.contains(&here)).then_some(here + 1);
            for to in jump.into_iter().chain(next) {
                let shortest = best.entry(to).or_insert(way);
                *shortest = way.min(*shortest);
            }
        }
        best.get(&at.end).map_or(at.len(), |(_, length)| *length)
    }
}

#[test]
fn the_loop_with_the_tensor_cores_is_found() {
    let text = "\t.section\t.text.product,\"ax\",@progbits\n.L_x_1:\n /*0000*/ LDS R0, [R1] ;\n.L_x_2:\n /*0010*/ HMMA.16816.F32 R0, R1, R2, R0 ;\n \
                /*0020*/ HMMA.16816.F32 R0, R1, R2, R0 ;\n /*0030*/ @P0 BRA `(.L_x_2) ;\n /*0040*/ @!P1 BRA `(.L_x_1) ;\n /*0050*/ EXIT ;\n\
                .L_x_3:\n /*0060*/ IMMA.16816.S8 R0, R1, R2, R0 ;\n /*0060*/ IMMA.16816.S8 R0, R1, R2, R0 ;\n \
                /*0060*/ IMMA.16816.S8 R0, R1, R2, R0 ;\n /*0070*/ BRA `(.L_x_3) ;\n\t.section\t.text.copy,\"ax\",@progbits\n /*0000*/ EXIT ;\n";
    let (name, copies) = ("HMMA", 0);
    let product = MatrixLoop { kernel: "product".into(), instructions: 3, matrix: 2, name, copies, least: 3 };
    assert_eq!(matrix_loops(text), [product]);
}

#[test]
fn the_shortest_way_with_all_products_and_copies_is_found() {
    // One path has no product and no copy, and another is longer. A poll after the end leads back into the loop.
    let text = "\t.section\t.text.product,\"ax\",@progbits\n.L_x_1:\n /*0000*/ @P1 BRA `(.L_x_2) ;\n /*0010*/ HMMA.16816.F32 R0, R1, R2, R0 ;\n\
                /*0020*/ LDGSTS.E.128 [R1], [R2] ;\n.L_x_2:\n /*0030*/ BRA.U UP0, `(.L_x_3) ;\n /*0040*/ FMNMX R0, R1, R2 ;\n /*0050*/ BRA `(.L_x_4) ;\n\
                .L_x_3:\n /*0060*/ FADD R0, R1, R2 ;\n.L_x_4:\n /*0070*/ @!P0 BRA `(.L_x_1) ;\n /*0080*/ EXIT ;\n\
                .L_x_5:\n /*0090*/ HMMA.16816.F32 R0, R1, R2, R0 ;\n /*00a0*/ BRA `(.L_x_2) ;\n";
    let found = matrix_loops(text);
    let (kernel, name) = ("product".into(), "HMMA");
    assert_eq!(found, [MatrixLoop { kernel, instructions: 8, matrix: 1, name, copies: 1, least: 6 }]);
}

#[test]
fn an_access_ahead_of_the_wait_is_found() {
    let text = "\t.section\t.text.copy,\"ax\",@progbits\n /*0000*/ LDC R0, c[0x0][0x28] ;\n /*0010*/ @P0 LDG.E R2, desc[UR4][R2.64] ;\n \
                /*0020*/ ACQBULK ;\n /*0030*/ STG.E desc[UR4][R4.64], R2 ;\n\t.section\t.text.none,\"ax\",@progbits\n \
                /*0000*/ STG.E desc[UR4][R4.64], R2 ;\n";
    assert_eq!(early_accesses(text), [("copy", "LDG"), ("none", "STG")]);
}
