//! Rows looked up in tables.

use cuda_std::launch::KernelCall;
use kernels::embedding::{add_positions, embed, embed_part, floor_bytes, gather_rows, shape};
use kernels::layout::VECTOR;
use kernels::with_element;
use launch::Result;

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::gpu::Gpu;
use crate::number::{ProblemRng, Type};

/// Rows in the token table.
const VOCAB: usize = 97;
/// The tokens of the shard that `embed_part` reads.
const PART: std::ops::Range<u32> = 40..73;
/// Rows of the table of learned positions before the first position, as in OPT.
const OFFSET: usize = 2;
/// Number of positions.
const POSITIONS: usize = 40;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let (rows, width) = match scale {
        Scale::Small => (20, 512),
        Scale::Full => (4096, 5120),
    };
    let problems = |ty| {
        [Lookup::Gather, Lookup::Embed, Lookup::Part, Lookup::Add].map(|lookup| LookupProblem {
            ty,
            lookup,
            rows,
            width,
            neutral: true,
            seed: 1,
        })
    };
    Type::ALL.into_iter().flat_map(problems).map(LookupProblem::case).collect()
}

/// The lookup, which determines the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// `gather_rows`.
    Gather,
    /// `embed`.
    Embed,
    /// `embed_part`, over a third of the tokens, with positions.
    Part,
    /// `add_positions`.
    Add,
}

/// Rows looked up in tables of random numbers.
#[derive(Clone, Copy, Debug)]
pub struct LookupProblem {
    /// Type of the elements.
    pub ty: Type,
    /// The kernel.
    pub lookup: Lookup,
    /// Number of rows.
    pub rows: usize,
    /// Elements in a row.
    pub width: usize,
    /// Whether positions are zero. A sum in place then leaves its operand unchanged, so the launch can be repeated.
    pub neutral: bool,
    /// Seed of the numbers.
    pub seed: u64,
}

impl LookupProblem {
    /// Makes a case of the problem. Results must be bit-exact.
    pub fn case(self) -> Case {
        let LookupProblem { ty, lookup, rows, width, .. } = self;
        let tables = if lookup == Lookup::Gather { 1 } else { 2 };
        Case {
            kernel: match lookup {
                Lookup::Gather => "gather_rows",
                Lookup::Embed => "embed",
                Lookup::Part => "embed_part",
                Lookup::Add => "add_positions",
            },
            shape: format!("{}, {rows} rows of {width}", ty.label()),
            floor: Floor { bytes: floor_bytes(rows as u64, (width / VECTOR as usize) as u64, tables), flops: 0 },
            prepare: Box::new(move |gpu| self.prepare(gpu)),
        }
    }

    fn prepare(self, gpu: &mut Gpu) -> Result<Prepared> {
        let LookupProblem { ty, lookup, rows, width, neutral, seed } = self;
        let mut random = ProblemRng(seed);
        let mut indices = |below: usize| (0..rows).map(|_| random.below(below as u64) as u32).collect::<Vec<_>>();
        let (tokens, positions) = (indices(VOCAB), indices(POSITIONS));
        let table = random.bits(ty, VOCAB * width);
        let size = (POSITIONS + OFFSET) * width;
        let learned = if neutral { vec![0; size] } else { random.bits(ty, size) };
        let looked_up = |table: &[u16], rows: &[u32], offset: usize| -> Vec<u16> {
            rows.iter().flat_map(|&r| &table[(r as usize + offset) * width..][..width]).copied().collect()
        };
        let mut of_tokens = looked_up(&table, &tokens, 0);
        if lookup == Lookup::Part {
            let others =
                tokens.iter().zip(of_tokens.chunks_exact_mut(width)).filter(|(token, _)| !PART.contains(token));
            others.for_each(|(_, row)| row.fill(0));
        }
        let of_positions = looked_up(&learned, &positions, OFFSET);
        // The sum of two 16-bit numbers is exact in f64. The kernel rounds it to f32 first.
        let sum = |(&a, &b): (&u16, &u16)| ty.bits(f64::from((ty.number(a) + ty.number(b)) as f32));
        let out = match lookup {
            Lookup::Add => gpu.upload("x", &of_tokens)?,
            _ => gpu.alloc("out", rows * width)?,
        };
        let truth = match lookup {
            Lookup::Gather => of_tokens,
            Lookup::Embed | Lookup::Part | Lookup::Add => of_tokens.iter().zip(&of_positions).map(sum).collect(),
        };
        let (table, learned) = (gpu.upload("table", &table)?, gpu.upload("learned positions", &learned)?);
        let (tokens, positions) = (gpu.upload("tokens", &tokens)?, gpu.upload("positions", &positions)?);
        let vectors = width as u32 / VECTOR;
        let (table, tokens, offset) = (table.ptr(), tokens.ptr(), OFFSET as u32);
        let (position_table, positions) = (learned.ptr(), positions.ptr());
        let call: KernelCall = match lookup {
            Lookup::Gather => gather_rows { x: table, rows: tokens, out: out.mut_ptr(), vectors }.into(),
            Lookup::Embed => {
                let args = embed { table, position_table, tokens, positions, offset, out: out.mut_ptr(), vectors };
                with_element!(ty.element(), T => args.instance::<T>())
            }
            Lookup::Part => {
                let (first, count) = (PART.start, PART.len() as u32);
                let table = table.offset(first as usize * vectors as usize);
                let out = out.mut_ptr();
                let args = embed_part { table, position_table, tokens, positions, offset, first, count, out, vectors };
                with_element!(ty.element(), T => args.instance::<T>())
            }
            Lookup::Add => {
                let args = add_positions { x: out.mut_ptr(), table: position_table, positions, offset, vectors };
                with_element!(ty.element(), T => args.instance::<T>())
            }
        };
        Ok(Prepared {
            // SAFETY: tokens and positions are rows of their tables.
            launch: Box::new(move |gpu| unsafe { gpu.launch(shape(rows as u32, vectors), call) }),
            error: Box::new(move |gpu| Ok(exact(&gpu.download(out)?, &truth))),
        })
    }
}
