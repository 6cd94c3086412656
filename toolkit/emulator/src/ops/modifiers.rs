//! Modifiers of opcodes that change what is computed.

/// The modifiers of an opcode that change what it computes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modifiers {
    pub wide: bool,
    pub hi: bool,
    pub ftz: bool,
    pub sat: bool,
    pub nan: bool,
    pub relu: bool,
    pub approx: bool,
}
