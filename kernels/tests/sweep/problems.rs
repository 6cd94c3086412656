//! The problems that mutated kernels run: the cases of the microbenchmarks, and problems that exercise further places.

use std::cell::RefCell;
use std::rc::Rc;

use kernels::attention::prefill::hopper::shape as attention;
use kernels::attention::{CAPPED_HEAD_SIZES, coded_heads};
use kernels::experts::hopper as experts;
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::hopper;
use kernels::gemm::operand::DEPTH;
use kernels::gemm::plan::{GemmKernel, GemmPlan, Product};
use kernels::gemm::quantised::TOKENS;
use kernels::gemm::quantised::layout::CodeForm;
use kernels::gemm::quantised::plan::QuantisedPlan;
use kernels::layout::KvFormat;
use kernels::norm::SumNorm;
use workbench::cases::normed::NormedProduct;
use workbench::number::Type;
use workbench::paged::{PagedSequence, PagedShape};
use workbench::{Case, Gpu, Prepared, Scale, cases, product};

/// Returns all problems for a target, the smallest first, since any problem notices most places.
pub fn all(target: &str) -> Vec<Case> {
    let mut all = cases::all(Scale::Small, target);
    all.extend(undivided_products(target));
    // A single tile along the summed index, for the same reason as in `undivided_products`.
    all.extend(cases::experts::projections([20, 2, 6], [80, DEPTH]));
    // A block has two tiles of rows, of which the second has none for the second warp group, and two tiles of the weight.
    // The ring goes round more than twice in each.
    let ring = (2 * experts::STAGES + 1) * DEPTH;
    all.extend(cases::experts::hopper_projections([150, 1, 1], [experts::COLUMNS + 16, ring], 1, target));
    all.extend(normed_products(target));
    all.extend(long_coded_contexts());
    all.extend(long_prompts(target));
    all.push(with_fresh_data(cases::sampling::case("every kind", cases::sampling::every_kind(260, 1))));
    all.sort_by_key(|case| case.floor.bytes);
    all
}

/// Products without splits, which have no barrier for adding up parts. Only the next barrier then separates reading a
/// tile from storing sums in its memory, so these products have a single tile.
///
/// With Hopper's kernel a block has at least two tiles of the product, and its ring goes round more than twice in each.
/// With Hopper's decode kernel the ring goes round as often. Every copy then waits until its slot is released.
fn undivided_products(target: &str) -> impl Iterator<Item = Case> {
    let product = |tokens: u32, n: u32, tiles: u32| Product {
        m: tokens.min(8),
        n,
        k: tiles * DEPTH,
        epilogue: Epilogue::Half(None),
    };
    const OTHERS: [Epilogue; 3] = [Epilogue::Float, Epilogue::Add, Epilogue::Gated(Activation::Silu)];
    let plain = product::kernels(target).flat_map(move |(kernel, tokens)| {
        let (product, others) = match kernel {
            GemmKernel::Hopper(columns) | GemmKernel::HopperPairs(columns) => {
                let tiles = (2 * hopper::stages(columns) + 1) * hopper::depth(columns) / DEPTH;
                // Both warp groups of both blocks of a pair have tokens. The epilogues differ in how sums are stored
                // and added to.
                let product = Product { m: hopper::ROWS + 2, ..product(tokens, 2 * columns, tiles) };
                (product, &OTHERS[..])
            }
            // The sums are stored in the memory of the last tile.
            GemmKernel::HopperDecode(tokens) => {
                let tiles = (2 * hopper::decode::stages(tokens) + 1) * hopper::decode::TILE_DEPTH / DEPTH;
                (product(tokens, hopper::decode::ROWS, tiles), &[][..])
            }
            // Here too the epilogues store sums differently.
            GemmKernel::Prefill(_) => (product(tokens, 128, 1), &OTHERS[..]),
            _ => (product(tokens, 128, 1), &[][..]),
        };
        let plan = move |epilogue| GemmPlan { product: Product { epilogue, ..product }, kernel, splits: 1, blocks: 1 };
        let epilogues = [product.epilogue].into_iter().chain(others.iter().copied());
        epilogues.flat_map(move |epilogue| Type::ALL.map(|ty| with_fresh_data(cases::gemm::case(plan(epilogue), ty))))
    });
    let quantised = CodeForm::DENSE.into_iter().flat_map(move |form| {
        TOKENS.into_iter().flat_map(move |tokens| {
            let plan = QuantisedPlan { product: product(tokens, 128, 1), form, group: DEPTH, tokens, splits: 1 };
            Type::ALL.map(|ty| cases::quantised::case(plan, ty))
        })
    });
    plain.chain(quantised)
}

/// Products followed by a norm. They have as many rows as tiles, or more, which gives a block several rows.
fn normed_products(target: &str) -> impl Iterator<Item = Case> {
    let kernels = product::kernels(target).filter(|(kernel, _)| kernel.normalises());
    kernels.flat_map(|(kernel, tokens)| {
        let norms = [(SumNorm::Rms, 8), (SumNorm::Layer, 264)];
        norms.into_iter().flat_map(move |(norm, n)| {
            Type::ALL.map(|ty| {
                let (sizes, affine) = ((tokens.min(3), n, 512), (true, norm == SumNorm::Layer));
                with_fresh_data(
                    NormedProduct { kernel, sizes, splits: 1, ty, norm, affine, neutral: false, seed: 7 }.case(),
                )
            })
        })
    })
}

/// Decode attention over 8-bit caches, whose small tiles have a deep ring. A warp has more tiles than its ring has
/// slots.
fn long_coded_contexts() -> impl Iterator<Item = Case> {
    coded_heads().flat_map(|(format, head_size)| {
        Type::ALL.into_iter().flat_map(move |ty| {
            let shape = PagedShape { ty, heads: 4, kv_heads: 1, head_size, block_size: 16, window: 0, format };
            let is_capped = CAPPED_HEAD_SIZES.contains(&head_size);
            let capped = is_capped.then(|| cases::decode::attend_capped(shape, vec![1500], 1));
            [cases::decode::attend(shape, vec![1500], 1)].into_iter().chain(capped)
        })
    })
}

/// Attention of prompts on Hopper, with more than twice as many tiles as the ring has slots. Only the second warp group
/// sees the last tile, which ends within a block.
fn long_prompts(target: &str) -> impl Iterator<Item = Case> {
    let tokens = (2 * attention::STAGES + 1) * attention::KEYS + 20;
    let sizes = if target == "sm_90a" { &[64, 128][..] } else { &[] };
    sizes.iter().flat_map(move |&head_size| {
        Type::ALL.into_iter().filter_map(move |ty| {
            let shape =
                PagedShape { ty, heads: 2, kv_heads: 1, head_size, block_size: 16, window: 0, format: KvFormat::Plain };
            cases::prefill::attend(shape, &[PagedSequence { new: 64, context: tokens }], true)
        })
    })
}

/// Makes a new problem for each launch of the case, since masks and adjustments overwrite logits.
fn with_fresh_data(case: Case) -> Case {
    let Case { kernel, shape, floor, prepare } = case;
    let prepare = Rc::new(prepare);
    let fresh = move |_: &mut Gpu| {
        let (prepare, latest) = (Rc::clone(&prepare), Rc::new(RefCell::new(None)));
        let launched = Rc::clone(&latest);
        Ok(Prepared {
            launch: Box::new(move |gpu| {
                let prepared = prepare(gpu)?;
                (prepared.launch)(gpu)?;
                launched.replace(Some(prepared));
                Ok(())
            }),
            error: Box::new(move |gpu| latest.borrow().as_ref().map_or(Ok(f64::NAN), |latest| (latest.error)(gpu))),
        })
    };
    Case { kernel, shape, floor, prepare: Box::new(fresh) }
}
