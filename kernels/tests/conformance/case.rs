//! A conformance case: an instruction, the kernel around it, and the expected results.

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
/// Values of the kernel's parameters that are not addresses, of 32 and of 64 bits.
pub const NUMBERS: (u32, u64) = (0x89ab_cdef, 0x0123_4567_89ab_cdef);

/// Names of the registers of the inputs, and below of the outputs.
pub const INPUTS: [&str; 10] = ["%a", "%b", "%c", "%e", "%f", "%g", "%i", "%j", "%k", "%l"];
const OUTPUTS: [&str; 4] = ["%x", "%y", "%z", "%w"];

/// The expected value of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// Exactly these bits.
    Bits(u64),
    /// Any NaN of this type.
    Nan(Type),
    /// A float of this type within `error` of `value`, or equal to it if `value` is not finite.
    Near { ty: Type, value: f64, error: f64 },
    /// Any bits, since the ISA does not specify the value.
    Any,
}

impl Expect {
    /// Expects these bits of a float, or any NaN if they are a NaN.
    pub fn float(ty: Type, bits: u64) -> Expect {
        if is_nan(ty, bits) { Expect::Nan(ty) } else { Expect::Bits(bits) }
    }

    /// Returns whether bits from memory are as expected.
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

/// Returns the value of a float's bits.
pub fn widen(ty: Type, bits: u64) -> f64 {
    f64::from_bits(Exact::of(ty, bits).round(Type::F64, Rounding::Nearest))
}

/// Returns whether a float's bits are a NaN.
pub fn is_nan(ty: Type, bits: u64) -> bool {
    Exact::of(ty, bits) == Exact::Nan
}

/// Computes the expected outputs of a thread from the operands of all threads and the thread's number.
type Reference = Box<dyn Fn(&[Vec<u64>], usize) -> Vec<Expect>>;

/// An instruction, the kernel around it, and the expected results.
///
/// The kernel loads the operands into `%a`, `%b`, ... and stores `%x`, `%y`, ... Around the instruction, a case may use
/// these registers:
///
/// - `%t`: the thread's index in its block.
/// - `%in` and `%out`: the addresses of the thread's operands and outputs, eight bytes each.
/// - `%tile` and `%generic`: the thread's own 32 bytes of shared memory, as an offset and as a generic address.
/// - `%h0..7`, `%r0..7`, `%d0..7` and `%p0..7`: temporaries of 16, 32 and 64 bits, and predicates.
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
    /// Creates a case whose reference sees the operands of all threads.
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

    /// Creates a case whose threads have one output each, which depends only on the thread's own operands.
    pub fn lanes(
        line: impl Into<String>,
        inputs: &[Type],
        output: Type,
        reference: impl Fn(&[u64]) -> Expect + 'static,
    ) -> Case {
        Case::new(line, inputs, &[output], move |operands, thread| vec![reference(&operands[thread])])
    }

    /// Adds instructions before the one under test.
    pub fn before(mut self, lines: impl Into<String>) -> Case {
        self.before = lines.into();
        self
    }

    /// Adds instructions after the one under test.
    pub fn after(mut self, lines: impl Into<String>) -> Case {
        self.after = lines.into();
        self
    }

    /// Returns the form under test.
    pub fn form(&self) -> String {
        form(&self.line).unwrap_or_else(|| panic!("not an instruction: {}", self.line))
    }

    /// Returns whether hardware approximates the result. All other forms give the same bits on every machine.
    pub fn is_approximate(&self) -> bool {
        self.line.contains(".approx") || self.line.contains(".full")
    }

    /// Returns the operands of every thread.
    pub fn operands(&self) -> Vec<Vec<u64>> {
        operands(&self.inputs, THREADS)
    }

    /// Returns how many values a thread writes.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Returns the expected outputs of every thread.
    pub fn expected(&self, operands: &[Vec<u64>]) -> Vec<Vec<Expect>> {
        (0..operands.len()).map(|thread| (self.reference)(operands, thread)).collect()
    }

    /// Returns the kernel as an entry with this name.
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
            // All eight bytes are written, which leaves no memory undefined.
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

/// Text before the kernels of a module.
pub const HEADER: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";
