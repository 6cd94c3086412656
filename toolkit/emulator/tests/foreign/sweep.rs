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
const FIRST_VALUES: &str =
    "the emulator makes a new mbarrier visible at once, and Triton's kernels have no such fence either";

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
        assert!(!is_noticed(&excerpt(None), &problems), "{kernel} fails without any removal");
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
fn cuda_kernels() {
    sweep(cuda::PTX, cuda::problems(), &[]);
}

#[test]
fn cub_kernels() {
    let own = "each thread next stores only where it alone has just read";
    let shuffles = "before shuffles, which exchange only registers";
    let reviewed = [
        ("exchange", "bar.sync", 3, own),
        (
            "histogram_sort",
            "bar.sync",
            4,
            "two after the bins are initialised, with other barriers before the bins are used; counters overwrite keys of the same \
             thread; a thread reads the bin that it wrote",
        ),
        ("load_and_store", "bar.sync", 1, own),
        (
            "neighbours",
            "bar.sync",
            1,
            "the next collective uses other memory, whose last reads are two barriers earlier",
        ),
        ("reduce_commutative", "bar.warp.sync", 1, shuffles),
        ("reduce_raking", "bar.warp.sync", 3, shuffles),
        ("scan_memoize", "bar.sync", 2, own),
        ("scan_raking", "bar.sync", 2, own),
        ("scan_warps", "bar.sync", 1, "the warps' sums are read before the barrier that passes on the prefix"),
    ];
    sweep(cub::PTX, cub::problems(), &reviewed);
}

#[test]
fn numba_kernels() {
    let reviewed = [
        ("product", "bar.sync", 1, "the one after the last tile, which no store follows"),
        ("sum_of_squares", "bar.sync", 1, "the last one: a thread reads its own write"),
    ];
    sweep(numba::PTX, numba::problems(), &reviewed);
}

#[test]
fn tiles_kernels() {
    let reviewed = ["copy_1", "copy_2", "copy_3", "copy_4", "copy_5"]
        .map(|kernel| (kernel, "fence.mbarrier_init.release.cluster", 1, FIRST_VALUES));
    sweep(tiles::PTX, tiles::problems().into_iter().step_by(37).collect(), &reviewed);
}

#[test]
fn products_kernels() {
    use emulator::Swizzle::{Bytes32, Bytes128};
    let kernels = ["f32_f16_f16_n16_rc", "f32_f16_f16_n16_gr"];
    let reviewed = [
        ("f32_f16_f16_n16_gr", "fence.mbarrier_init.release.cluster", 1, FIRST_VALUES),
        (
            "f32_f16_f16_n16_gr",
            "wgmma.wait_group.sync.aligned",
            1,
            "the last one: every step has already waited for its product",
        ),
        ("f32_f16_f16_n16_rc", "fence.mbarrier_init.release.cluster", 1, FIRST_VALUES),
    ];
    sweep(products::PTX, kernels.map(|kernel| products::problem(kernel, [Bytes32, Bytes128])).into(), &reviewed);
}

#[test]
fn triton_for_sm_80_kernels() {
    let joined = "the copies join the next group, and the wait covers both";
    let reviewed = [
        (
            "attention",
            "bar.sync",
            1,
            "results overwrite the queries, whose last reads are before the loop's last barrier",
        ),
        ("attention", "cp.async.commit_group", 2, joined),
        ("attention", "cp.async.wait_group", 1, "results overwrite the queries, which no copy writes any more"),
        (
            "matmul",
            "bar.sync",
            1,
            "the first one in the loop: it guards the second half of a tile, which an earlier barrier also guards",
        ),
        ("matmul", "cp.async.commit_group", 1, joined),
        (
            "matmul",
            "cp.async.wait_group",
            3,
            "the first one in the loop, for the same reason as its barrier, and two in a row, either of which is enough",
        ),
    ];
    sweep(triton::AMPERE, triton::ampere_problems(), &reviewed);
}

#[test]
fn triton_for_sm_90a_kernels() {
    let joined = "the copies join the next group, and the wait covers both";
    let row = "several between two uses of a tile or an mbarrier, any of which is enough, and one at the end";
    let unused = "the mbarrier's memory is not used again";
    let reviewed = [
        ("attention", "cp.async.commit_group", 2, joined),
        (
            "attention",
            "fence.proxy.async.shared::cta",
            1,
            "the one for the values: the fence for the keys also comes after their copies",
        ),
        ("matmul", "cp.async.commit_group", 1, joined),
        ("matmul_tensors", "bar.sync", 13, row),
        ("matmul_tensors", "mbarrier.inval.shared::cta.b64", 3, unused),
        ("matmul_tensors_wide", "bar.sync", 14, row),
        ("matmul_tensors_wide", "mbarrier.inval.shared::cta.b64", 4, unused),
    ];
    sweep(triton::HOPPER, triton::hopper_problems(), &reviewed);
}
