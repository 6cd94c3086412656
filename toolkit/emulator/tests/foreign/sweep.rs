//! Removes each barrier, wait, fence, arrival and commit of the kernels, one at a time. Each removal must cause a fault
//! or a wrong result in some order of warps and blocks, or be in the reviewed list with the reason why it has no
//! effect.

use std::collections::BTreeMap;

use emulator::{LaunchOptions, ORDERING, PtxModule, PtxParts, PtxPlace};

use crate::problem::{ORDERS, Problem};
use crate::{cub, cuda, numba, products, tiles, triton};

/// Removable instructions of a kernel without effect: the kernel, the opcode, how many there are, and why.
type Reviewed = (&'static str, &'static str, usize, &'static str);

/// Why removing the fence after the initialisation of an mbarrier has no effect.
const FIRST_VALUES: &str = "the emulator knows a new mbarrier at once; Triton's kernels have no such fence either";

/// The instruction limit after which a changed kernel counts as endless.
const MOST: u64 = 1 << 22;

/// Whether any problem fails in any order.
fn is_noticed(text: &str, problems: &[&Problem]) -> bool {
    let Ok(module) = PtxModule::parse(text) else { return true };
    problems.iter().any(|problem| {
        ORDERS.into_iter().any(|seed| {
            let options = LaunchOptions { seed, instruction_limit: MOST, ..LaunchOptions::default() };
            problem.run(text, &module, &options).is_err()
        })
    })
}

/// Removes each ordering instruction of a text's kernels, and asserts that exactly the reviewed ones have no effect.
fn sweep(text: &str, problems: Vec<Problem>, reviewed: &[Reviewed]) {
    let parts = PtxParts::of(text, "");
    let mut unnoticed: BTreeMap<(&str, &str), Vec<PtxPlace<'_>>> = BTreeMap::new();
    for kernel in parts.kernels() {
        let problems: Vec<&Problem> = problems.iter().filter(|problem| problem.kernel == kernel).collect();
        let places = parts.places(kernel, &ORDERING);
        if problems.is_empty() {
            continue;
        }
        let head = text.lines().find(|line| line.starts_with(&format!("// {kernel}: "))).unwrap_or_default();
        let excerpt = |place: Option<&PtxPlace<'_>>| format!("{head}\n{}", parts.excerpt([kernel], place));
        assert!(!is_noticed(&excerpt(None), &problems), "{kernel} is wrong with all of its places");
        for place in places.into_iter().filter(|place| !is_noticed(&excerpt(Some(place)), &problems)) {
            let opcode = place.instruction.split([' ', '\t', ';']).next().unwrap();
            unnoticed.entry((kernel, opcode)).or_default().push(place);
        }
    }
    let found: Vec<_> = unnoticed.iter().map(|(&(kernel, opcode), places)| (kernel, opcode, places.len())).collect();
    let wanted: Vec<_> = reviewed.iter().map(|&(kernel, opcode, count, _)| (kernel, opcode, count)).collect();
    assert_eq!(found, wanted, "{unnoticed:#?}");
}

#[test]
fn of_cuda() {
    sweep(cuda::PTX, cuda::problems(), &[]);
}

#[test]
fn of_cub() {
    let own = "each thread stores next where it has just read itself, and nobody else did";
    let shuffles = "before shuffles, which exchange registers only";
    let reviewed = [
        ("exchange", "bar.sync", 3, own),
        (
            "histogram_sort",
            "bar.sync",
            4,
            "two behind the bins' first values, before others that come before they are used; keys give way to counters of the same \
             thread; a thread reads the bin that it wrote",
        ),
        ("load_and_store", "bar.sync", 1, own),
        (
            "neighbours",
            "bar.sync",
            1,
            "the next collective has a place of its own, whose last reads are two barriers before",
        ),
        ("reduce_commutative", "bar.warp.sync", 1, shuffles),
        ("reduce_raking", "bar.warp.sync", 3, shuffles),
        ("scan_memoize", "bar.sync", 2, own),
        ("scan_raking", "bar.sync", 2, own),
        ("scan_warps", "bar.sync", 1, "the warps' sums are read before the barrier that hands on the prefix"),
    ];
    sweep(cub::PTX, cub::problems(), &reviewed);
}

#[test]
fn of_numba() {
    let reviewed = [
        ("product", "bar.sync", 1, "that behind the last tile, after which nothing is stored"),
        ("sum_of_squares", "bar.sync", 1, "the last: one thread reads what it wrote itself"),
    ];
    sweep(numba::PTX, numba::problems(), &reviewed);
}

#[test]
fn of_tiles() {
    let reviewed = ["copy_1", "copy_2", "copy_3", "copy_4", "copy_5"]
        .map(|kernel| (kernel, "fence.mbarrier_init.release.cluster", 1, FIRST_VALUES));
    sweep(tiles::PTX, tiles::problems().into_iter().step_by(37).collect(), &reviewed);
}

#[test]
fn of_products() {
    use emulator::Swizzle::{Bytes32, Bytes128};
    let kernels = ["f32_f16_f16_n16_rc", "f32_f16_f16_n16_gr"];
    let reviewed = [
        ("f32_f16_f16_n16_gr", "fence.mbarrier_init.release.cluster", 1, FIRST_VALUES),
        ("f32_f16_f16_n16_gr", "wgmma.wait_group.sync.aligned", 1, "the last: every step has waited for its product"),
        ("f32_f16_f16_n16_rc", "fence.mbarrier_init.release.cluster", 1, FIRST_VALUES),
    ];
    sweep(products::PTX, kernels.map(|kernel| products::problem(kernel, [Bytes32, Bytes128])).into(), &reviewed);
}

#[test]
fn of_triton_for_sm_80() {
    let joined = "copies of one step join those of the next group, and waits are for both";
    let reviewed = [
        (
            "attention",
            "bar.sync",
            1,
            "results take the place of queries, whose last reads are before the loop's last barrier",
        ),
        ("attention", "cp.async.commit_group", 2, joined),
        ("attention", "cp.async.wait_group", 1, "results take the place of queries, which no copy writes any more"),
        ("matmul", "bar.sync", 1, "the first of the loop: the second half of a tile, for which there was one before"),
        ("matmul", "cp.async.commit_group", 1, joined),
        (
            "matmul",
            "cp.async.wait_group",
            3,
            "the first of the loop, as its barrier; and two in a row, either of which is enough",
        ),
    ];
    sweep(triton::AMPERE, triton::of_ampere(), &reviewed);
}

#[test]
fn of_triton_for_sm_90a() {
    let joined = "copies of one step join those of the next group, and waits are for both";
    let row = "there are several between two uses of a tile or an mbarrier, any of which is enough, and one at the end";
    let unused = "nothing uses the mbarrier's memory any more";
    let reviewed = [
        ("attention", "cp.async.commit_group", 2, joined),
        (
            "attention",
            "fence.proxy.async.shared::cta",
            1,
            "of the values, whose copies the fence of the keys comes after, too",
        ),
        ("matmul", "cp.async.commit_group", 1, joined),
        ("matmul_tensors", "bar.sync", 13, row),
        ("matmul_tensors", "mbarrier.inval.shared::cta.b64", 3, unused),
        ("matmul_tensors_wide", "bar.sync", 14, row),
        ("matmul_tensors_wide", "mbarrier.inval.shared::cta.b64", 4, unused),
    ];
    sweep(triton::HOPPER, triton::of_hopper(), &reviewed);
}
