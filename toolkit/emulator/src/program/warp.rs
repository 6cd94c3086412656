//! Exchanges between lanes, decoded.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    Ballot,
    All,
    Any,
    Uniform,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduxOp {
    Add,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

/// An exchange between the lanes of a warp, and the slot of its member mask.
#[derive(Clone, Debug)]
pub(crate) enum Collective {
    Shuffle {
        mode: ShuffleMode,
        result: u32,
        valid: Option<u32>,
        value: u32,
        lane: u32,
        clamp: u32,
    },
    Vote {
        mode: VoteMode,
        result: u32,
        predicate: u32,
        negated: bool,
    },
    Redux {
        op: ReduxOp,
        result: u32,
        value: u32,
    },
    MatchAny {
        result: u32,
        value: u32,
        wide: bool,
    },
    /// The lanes that take part, if all have the same value, else none; and whether they have.
    MatchAll {
        result: u32,
        all: Option<u32>,
        value: u32,
        wide: bool,
    },
    /// The lowest lane, and a predicate that is true there.
    Elect {
        result: u32,
        chosen: u32,
    },
    Barrier,
}
