//! A conformance case: an instruction, the kernel around it, and what it should give.

use std::fmt::Write as _;

use crate::exact::{Exact, Rounding};
use crate::form::form;
use crate::types::{Type, operands};

/// Threads in a block.
pub const BLOCK: usize = 256;
/// Blocks in a launch.
pub const GRID: usize = 4;
/// Threads in a launch.
pub const THREADS: usize = BLOCK * GRID;
/// What the kernel's parameters hold that are no addresses, of 32 and of 64 bits.
pub const NUMBERS: (u32, u64) = (0x89ab_cdef, 0x0123_4567_89ab_cdef);

/// The names of the inputs' registers and of the outputs'.
pub const INPUTS: [&str; 10] = ["%a", "%b", "%c", "%e", "%f", "%g", "%i", "%j", "%k", "%l"];
const OUTPUTS: [&str; 4] = ["%x", "%y", "%z", "%w"];

/// What an output should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// Exactly these bits.
    Bits(u64),
    /// A NaN of this type, whichever.
    Nan(Type),
    /// A float of this type within `error` of `value`; or equal to it, if that is no finite number.
    Near { ty: Type, value: f64, error: f64 },
    /// The ISA leaves it open.
    Any,
}

impl Expect {
    /// These bits of a float; if they are a NaN, then any.
    pub fn float(ty: Type, bits: u64) -> Expect {
        if is_nan(ty, bits) { Expect::Nan(ty) } else { Expect::Bits(bits) }
    }

    /// Whether bits of memory are as expected.
    pub fn holds(self, found: u64) -> bool {
        match self {
            Expect::Bits(bits) => bits == found,
            Expect::Nan(ty) => is_nan(ty, found),
            Expect::Near { ty, value, error } => {
                let found = widen(ty, found);
                found == value || (found.is_nan() && value.is_nan()) || (found - value).abs() <= error
            }
            Expect::Any => true,
        }
    }
}

/// The value of a float's bits.
pub fn widen(ty: Type, bits: u64) -> f64 {
    f64::from_bits(Exact::of(ty, bits).round(Type::F64, Rounding::Nearest))
}

/// Whether a float's bits are a NaN.
pub fn is_nan(ty: Type, bits: u64) -> bool {
    Exact::of(ty, bits) == Exact::Nan
}

/// What the threads of a launch should write: from all operands and the number of a thread to its outputs.
type Reference = Box<dyn Fn(&[Vec<u64>], usize) -> Vec<Expect>>;

/// An instruction, the kernel around it, and what it should give.
///
/// The kernel loads the operands into `%a`, `%b`, ..., and stores `%x`, `%y`, ... . Around the instruction it may use:
/// `%t`, the thread's index in its block; `%in` and `%out`, the addresses of its operands and outputs, eight bytes each;
/// `%tile` and `%generic`, its own 32 bytes of shared memory, as offset and as generic address; and registers for
/// temporaries, `%h0..7`, `%r0..7`, `%d0..7` and `%p0..7` of 16, 32, 64 bits and predicates.
pub struct Case {
    /// The instruction under test, with its operands.
    pub line: String,
    inputs: Vec<Type>,
    outputs: Vec<Type>,
    before: String,
    after: String,
    reference: Reference,
}

impl Case {
    /// A case with a reference that sees the operands of all threads.
    pub fn new(
        line: impl Into<String>,
        inputs: &[Type],
        outputs: &[Type],
        reference: impl Fn(&[Vec<u64>], usize) -> Vec<Expect> + 'static,
    ) -> Case {
        Case {
            line: line.into(),
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            before: String::new(),
            after: String::new(),
            reference: Box::new(reference),
        }
    }

    /// A case in which each thread's one output depends on its own operands only.
    pub fn lanes(
        line: impl Into<String>,
        inputs: &[Type],
        output: Type,
        reference: impl Fn(&[u64]) -> Expect + 'static,
    ) -> Case {
        Case::new(line, inputs, &[output], move |operands, thread| vec![reference(&operands[thread])])
    }

    /// Instructions before the one under test.
    pub fn before(mut self, lines: impl Into<String>) -> Case {
        self.before = lines.into();
        self
    }

    /// Instructions after the one under test.
    pub fn after(mut self, lines: impl Into<String>) -> Case {
        self.after = lines.into();
        self
    }

    /// The form under test.
    pub fn form(&self) -> String {
        form(&self.line).unwrap_or_else(|| panic!("no instruction: {}", self.line))
    }

    /// Whether the machine approximates: of all other forms every machine has the same bits.
    pub fn is_approximate(&self) -> bool {
        self.line.contains(".approx") || self.line.contains(".full")
    }

    /// The operands of every thread.
    pub fn operands(&self) -> Vec<Vec<u64>> {
        operands(&self.inputs, THREADS)
    }

    /// How many values a thread writes.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// What every thread should write.
    pub fn expected(&self, operands: &[Vec<u64>]) -> Vec<Vec<Expect>> {
        (0..operands.len()).map(|thread| (self.reference)(operands, thread)).collect()
    }

    /// The kernel, as the entry of this name.
    pub fn kernel(&self, name: &str) -> String {
        let mut text = format!(
            ".visible .entry {name}(.param .b64 in, .param .b64 out, .param .b32 number, .param .b64 wide)\n\
             .maxntid {BLOCK}\n{{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<8>, %t, %n, %tile;\n\
             .reg .b64 %d<8>, %in, %out, %generic, %m;\n.shared .align 16 .b8 tile[{}];\n",
            BLOCK * 32
        );
        let named = || self.inputs.iter().zip(INPUTS).chain(self.outputs.iter().zip(OUTPUTS));
        for (ty, name) in named() {
            let _ = writeln!(text, ".reg .{} {name};", ty.register());
        }
        let _ = write!(
            text,
            "ld.param.b64 %in, [in];\nld.param.b64 %out, [out];\ncvta.to.global.u64 %in, %in;\n\
             cvta.to.global.u64 %out, %out;\nmov.u32 %t, %tid.x;\nmov.u32 %n, %ctaid.x;\n\
             mad.lo.u32 %n, %n, {BLOCK}, %t;\nmul.wide.u32 %m, %n, {};\nadd.s64 %in, %in, %m;\n\
             mul.wide.u32 %m, %n, {};\nadd.s64 %out, %out, %m;\nmov.b32 %tile, tile;\n\
             mad.lo.u32 %tile, %t, 32, %tile;\ncvt.u64.u32 %generic, %tile;\ncvta.shared.u64 %generic, %generic;\n",
            8 * self.inputs.len().next_multiple_of(2),
            8 * self.outputs.len().next_multiple_of(2),
        );
        for (i, (ty, name)) in self.inputs.iter().zip(INPUTS).enumerate() {
            let _ = match ty {
                Type::Pred => {
                    writeln!(text, "ld.global.b32 %n, [%in+{}];\nsetp.ne.u32 {name}, %n, 0;", 8 * i)
                }
                _ => writeln!(text, "ld.global.{} {name}, [%in+{}];", ty.register(), 8 * i),
            };
        }
        let _ = writeln!(text, "{}\n{}\n{}", self.before, self.line, self.after);
        for (i, (ty, name)) in self.outputs.iter().zip(OUTPUTS).enumerate() {
            // All eight bytes are written, so that memory has nothing undefined.
            let _ = match ty.register() {
                "pred" => writeln!(text, "selp.b64 %m, 1, 0, {name};\nst.global.b64 [%out+{}], %m;", 8 * i),
                "b64" => writeln!(text, "st.global.b64 [%out+{}], {name};", 8 * i),
                register => {
                    let width = &register[1..];
                    writeln!(text, "cvt.u64.u{width} %m, {name};\nst.global.b64 [%out+{}], %m;", 8 * i)
                }
            };
        }
        text + "ret;\n}\n"
    }
}

/// What goes before the kernels of a module.
pub const HEADER: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";
