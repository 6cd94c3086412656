//! Instruction forms, and the forms that a PTX text contains.
//!
//! A form is an opcode with its modifiers and types, and the kinds of its operands: `ld.global.v2.b32 {} []`, `mov.u32
//! r %tid.x`, `shfl.sync.bfly.b32 r|r r r r r`. `r` is a register or a constant, `[]` is memory, and `{}` is several
//! registers.

use std::collections::BTreeSet;

/// Returns the form of an instruction, or `None` if the text is a directive or a label.
pub fn form(instruction: &str) -> Option<String> {
    let text = instruction.trim().trim_end_matches(';');
    let text = match text.strip_prefix('@') {
        Some(guarded) => guarded.split_once(char::is_whitespace)?.1.trim_start(),
        None => text,
    };
    let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if !opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    let mut form = opcode.to_owned();
    for operand in split(operands) {
        form.push(' ');
        form.push_str(match operand.chars().next() {
            Some('[') => "[]",
            Some('{') => "{}",
            _ if is_special(operand) => operand,
            _ if operand.contains('|') => "r|r",
            _ => "r",
        });
    }
    Some(form)
}

/// Splits the operands of an instruction at commas outside brackets.
fn split(operands: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = operands.split(move |c| {
        match c {
            '[' | '{' | '(' => depth += 1,
            ']' | '}' | ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|operand| !operand.is_empty())
}

/// Returns whether an operand is a special register.
fn is_special(operand: &str) -> bool {
    let names = ["%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%laneid", "%warpid", "%lanemask", "%clock", "%globaltimer"];
    names.iter().any(|name| operand.starts_with(name))
}

/// Returns all forms in a PTX text.
pub fn forms(ptx: &str) -> BTreeSet<String> {
    let lines = ptx.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    // Directives end with their line, but an instruction may span several lines.
    let code: Vec<&str> = lines.filter(|line| !line.starts_with('.') && !line.ends_with(':')).collect();
    let code = code.join(" ");
    code.split(';')
        .filter_map(|statement| form(statement.trim_start_matches([' ', '\t', '{', '}', '(', ')'])))
        .collect()
}

#[test]
fn a_form_is_the_opcode_and_the_kinds_of_its_operands() {
    let cases = [
        ("add.s32 \t%r1, %r2, 5;", "add.s32 r r r"),
        ("@!%p1 ld.global.v2.b32 {%r1, %r2}, [%rd1+8];", "ld.global.v2.b32 {} []"),
        ("mov.u32 %r1, %tid.x;", "mov.u32 r %tid.x"),
        ("shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;", "shfl.sync.bfly.b32 r|r r r r r"),
        ("ret;", "ret"),
    ];
    for (instruction, expected) in cases {
        assert_eq!(form(instruction).as_deref(), Some(expected));
    }
    let ptx = ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n\t.reg .b32 %r<3>;\n\t.loc 1 2 3\n$L__tmp0:\n\
               \t// begin inline asm\n\t{ .reg .pred p; setp.eq.u32 p, %r1, 0; }\n\t@%p2 bra \t$L__tmp0;\n\tret;\n}\n";
    let expected = ["bra r", "ret", "setp.eq.u32 r r r"].map(String::from);
    assert_eq!(forms(ptx), BTreeSet::from(expected));
}
