//! Decoded exchanges between lanes.

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

/// An exchange between the lanes of a warp.
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
    /// Gives the lanes that take part if all have the same value, or else 0. `all` says whether they have.
    MatchAll {
        result: u32,
        all: Option<u32>,
        value: u32,
        wide: bool,
    },
    /// Gives the lowest lane, and a predicate that is true only there.
    Elect {
        result: u32,
        chosen: u32,
    },
    Barrier,
}
