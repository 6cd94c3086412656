//! The syntax tree of a PTX file, before names are resolved.

use super::error::ParseError;
use std::collections::HashMap;

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    /// The shared memory of all blocks of a cluster.
    Cluster,
    Local,
    /// Parameters of a call, in private memory of the thread.
    Param,
    /// Parameters of the kernel, which all threads read.
    Parameters,
}

/// The width of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Predicate,
    B16,
    B32,
    B64,
}

/// Part of a variable's initial value.
#[derive(Clone, Debug)]
pub(crate) enum Initial {
    Bytes(Vec<u8>),
    /// The generic address of another variable.
    Address {
        symbol: String,
        offset: i64,
    },
}

/// A variable or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: String,
    pub space: Space,
    pub align: usize,
    pub size: usize,
    /// `.extern .shared name[]`: dynamic shared memory.
    pub external: bool,
    pub initial: Vec<Initial>,
}

impl Variable {
    /// Returns whether it is in device memory.
    pub fn is_on_device(&self) -> bool {
        self.space == Space::Global && !self.external
    }
}

/// An operand as written. Names of inner scopes are already unique.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A register, a symbol, a special register, a label or `_`.
    Name(String),
    /// A negated predicate, such as `!%p`.
    Not(String),
    /// Two destinations, such as `%p|%q`.
    Pair(String, String),
    /// A name plus an offset, such as `symbol+8`.
    Sum(String, i64),
    Integer(u64),
    /// `0f...`: the bits of an f32.
    Single(u32),
    /// `0d...` or a decimal fraction.
    Double(f64),
    /// A vector, such as `{a, b}`.
    Vector(Vec<Operand>),
    /// An address with an offset, such as `[a+8]`.
    Address(Box<Operand>, i64),
    /// A list, such as `(a, b)` or the `[map, {x, y}]` of a tensor copy.
    List(Vec<Operand>),
}

/// The parameters and results of functions that are called through a pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prototype {
    pub parameters: Vec<Variable>,
    pub returns: Vec<Variable>,
    /// `.calltargets`: the functions that may be called, instead of parameters and results.
    pub targets: Option<Vec<String>>,
}

/// A place in the Rust source: the file's index and the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub file: u32,
    pub line: u32,
}

/// An instruction as written.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub line: u32,
    pub place: Option<Place>,
    /// The guard's register and whether it is negated.
    pub guard: Option<(String, bool)>,
    pub opcode: String,
    pub operands: Vec<Operand>,
    pub scope: usize,
}

/// Launch bounds that an entry declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchBounds {
    /// `.maxntid`: the most threads of a block, per dimension.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the exact block shape.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`: blocks that must fit one multiprocessor.
    pub min_blocks: Option<u32>,
    /// `.maxnreg`: the most registers of a thread.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`: the exact shape of a cluster of blocks.
    pub required_cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`: the most blocks of a cluster.
    pub max_cluster: Option<u32>,
    /// `.explicitcluster`: the kernel must be launched in clusters.
    pub explicit_cluster: bool,
}

/// An entry or a device function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub name: String,
    pub entry: bool,
    pub line: u32,
    pub parameters: Vec<Variable>,
    pub returns: Vec<Variable>,
    pub registers: HashMap<String, Width>,
    pub variables: Vec<Variable>,
    pub body: Vec<Statement>,
    /// The index of the statement after each label, by scope.
    pub labels: HashMap<(usize, String), usize>,
    /// `.branchtargets` tables, by scope.
    pub tables: HashMap<(usize, String), Vec<String>>,
    /// `.callprototype`: the parameters and results of functions that are called through pointers, by scope.
    pub prototypes: HashMap<(usize, String), Prototype>,
    /// The parent of each scope. The outermost scope is its own parent.
    pub scopes: Vec<usize>,
    pub bounds: LaunchBounds,
    pub defined: bool,
    /// The error for its first unsupported directive. Only kernels that need the function are refused.
    pub refused: Option<ParseError>,
}

impl Function {
    /// Looks up a label or table, from a scope outwards.
    pub fn visible<'a, T>(&self, map: &'a HashMap<(usize, String), T>, scope: usize, name: &str) -> Option<&'a T> {
        let mut scope = scope;
        loop {
            if let Some(found) = map.get(&(scope, name.to_string())) {
                return Some(found);
            }
            if scope == 0 {
                return None;
            }
            scope = self.scopes[scope];
        }
    }
}

/// A whole PTX file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    pub version: String,
    pub target: String,
    pub files: HashMap<u32, String>,
    pub functions: Vec<Function>,
    pub variables: Vec<Variable>,
}
