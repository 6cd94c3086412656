//! Checks the book's page on PTX forms: the emulator accepts every form listed as running, and refuses by name every
//! form listed as refused.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::PtxModule;
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/src/forms.md");

/// The instructions of PTX, from the table of contents of NVIDIA's manual.
const INSTRUCTIONS: &str = "
    add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev bfe bfi szext bmsk dp4a dp2a
    addc subc madc testp copysign fma rcp sqrt rsqrt sin cos lg2 ex2 tanh set setp selp slct and or xor not cnot lop3 shf
    shl shr mov shfl prmt ld ldu st prefetch prefetchu isspacep cvta cvt mapa getctarank createpolicy applypriority discard
    cp multimem tensormap tex tld4 txq istypep suld sust sured suq bra brx call ret exit bar barrier membar fence atom red
    vote match activemask redux griddepcontrol elect mbarrier wmma mma ldmatrix stmatrix movmatrix wgmma tcgen05
    vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2
    vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4 brkpt nanosleep pmevent trap setmaxnreg alloca stacksave stackrestore
    clusterlaunchcontrol";

/// The lines of the page's code blocks of one kind.
fn lines(kind: &str) -> impl Iterator<Item = &'static str> {
    let start = format!("```ptx,{kind}");
    let mut inside = false;
    PAGE.lines().filter(move |line| {
        let fence = line.starts_with("```");
        inside = if fence { *line == start } else { inside };
        inside && !fence
    })
}

/// Expands a line with alternatives into one statement per combination.
fn statements(line: &str) -> Vec<String> {
    // Expand the innermost alternatives first.
    let Some(end) = line.find('>') else { return vec![line.to_string()] };
    let start = line[..end].rfind('<').unwrap_or_else(|| panic!("`{line}`"));
    let choices = line[start + 1..end].split('|');
    choices.flat_map(|choice| statements(&format!("{}{choice}{}", &line[..start], &line[end + 1..]))).collect()
}

/// The error for a kernel that contains one statement.
fn refusal(statement: &str) -> Option<String> {
    let text = format!(
        ".version 8.8\n.target sm_90a\n.address_size 64\n.global .align 8 .b8 gl[64]; .func fn() {{ ret; }}
         .visible .entry k(.param .b32 par) {{
         .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<30>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .f64 %g<8>;
         .shared .align 128 .b8 sm[1024]; .local .align 8 .b8 lo[64];
         table: .branchtargets L; prototype: .callprototype _ ();
         {statement}
         L: ret; }}"
    );
    PtxModule::parse(&text)
        .unwrap_or_else(|error| panic!("`{statement}`: {error}"))
        .check()
        .err()
        .map(|e| e.to_string())
}

#[test]
fn forms_listed_as_running_are_accepted() {
    let all: Vec<String> = lines("runs").flat_map(statements).collect();
    assert!(all.len() > 1000, "{}", all.len());
    let wrong: Vec<String> =
        all.iter().filter_map(|statement| Some(format!("{statement}  {}", refusal(statement)?))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn forms_listed_as_refused_are_refused_by_name() {
    let all: Vec<String> = lines("refused").flat_map(statements).collect();
    assert!(all.len() > 100, "{}", all.len());
    let is_named = |statement: &String| {
        let opcode = statement.split([' ', ';']).next().unwrap();
        refusal(statement).is_some_and(|error| error.starts_with(&format!("PTX line 9: `{opcode}` in `k`: ")))
    };
    let wrong: Vec<&str> = all.iter().filter(|statement| !is_named(statement)).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_lists_every_instruction() {
    let all = lines("runs").chain(lines("refused")).flat_map(statements);
    let listed: BTreeSet<String> =
        all.map(|statement| statement.split(['.', ' ', ';']).next().unwrap().into()).collect();
    let expected: BTreeSet<String> = INSTRUCTIONS.split_whitespace().map(String::from).collect();
    assert_eq!(listed, expected);
}
