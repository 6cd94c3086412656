//! Modifiers of opcodes that change the result.

/// The modifiers of an opcode that change its result.
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
