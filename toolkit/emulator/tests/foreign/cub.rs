//! Block and warp collectives of CUB, compiled from C++ by NVIDIA's compiler.

use emulator::PtxModule;

use crate::problem::{Argument, Form, Memory, Problem, bytes, check, exactly, input, numbers, output, value};

pub const PTX: &str = include_str!("cub.ptx");

const THREADS: usize = 96;
const ITEMS: usize = 4;
const TILE: usize = THREADS * ITEMS;
const BLOCKS: usize = 2;

/// Test numbers for all blocks, including negative ones.
fn items(range: i32) -> Vec<i32> {
    numbers(BLOCKS * TILE, range).iter().map(|&x| x - range / 3).collect()
}

/// Applies `result` to each tile and concatenates the results.
fn tiles(x: &[i32], result: impl Fn(&[i32]) -> Vec<i32>) -> Vec<i32> {
    x.chunks(TILE).flat_map(result).collect()
}

/// A launch of two blocks on the given numbers, with the expected outputs.
fn blocks(kernel: &'static str, x: &[i32], expected: Vec<Vec<i32>>) -> Problem {
    let outputs = expected.iter().map(|list| output::<i32>(list.len()));
    let arguments: Vec<Argument> = [input(x)].into_iter().chain(outputs).collect();
    Problem::line(kernel, BLOCKS as u32, THREADS as u32, arguments, exactly(expected))
}

fn sorted(mut x: Vec<i32>) -> Vec<i32> {
    x.sort_unstable();
    x
}

fn reductions() -> Vec<Problem> {
    let x = items(10_000);
    let expected = tiles(&x, |tile| {
        let of_thread = |i: usize| tile.iter().skip(i).step_by(ITEMS);
        vec![tile.iter().sum(), of_thread(0).take(70).sum(), *of_thread(1).max().unwrap()]
    });
    let names = ["reduce_raking", "reduce_commutative", "reduce_warps"];
    names.into_iter().map(|name| blocks(name, &x, vec![expected.clone()])).collect()
}

fn scans() -> Vec<Problem> {
    let x = items(1000);
    let running = |x: &[i32], mut state: i32, f: fn(i32, i32) -> i32| -> Vec<i32> {
        let mut step = |x: i32| {
            let before = state;
            state = f(before, x);
            before
        };
        x.iter().map(|&x| step(x)).collect()
    };
    let sums = running(&x, 0, |a, b| a + b);
    let greatest = tiles(&x, |tile| {
        let before = running(tile, i32::MIN, i32::max);
        before.into_iter().zip(tile).map(|(before, &x)| before.max(x)).collect()
    });
    let scan = |name| {
        let arguments = vec![input(&x), output::<i32>(x.len()), output::<i32>(x.len()), value(BLOCKS as i32)];
        Problem::line(name, 1, THREADS as u32, arguments, exactly(vec![sums.clone(), greatest.clone()]))
    };
    ["scan_raking", "scan_memoize", "scan_warps"].map(scan).into()
}

fn sorts() -> Vec<Problem> {
    // The sort is stable: equal keys keep their order.
    let x = items(200);
    let places = tiles(&x, |tile| {
        let mut places: Vec<i32> = (0..TILE as i32).collect();
        places.sort_by_key(|&place| tile[place as usize]);
        places
    });
    let keys = tiles(&x, |tile| sorted(tile.to_vec()));
    let floats: Vec<f32> = items(5000).iter().map(|&x| x as f32 / 16.0).collect();
    let descending = floats.chunks(TILE).flat_map(|tile| {
        let mut tile = tile.to_vec();
        tile.sort_by(|a, b| b.total_cmp(a));
        tile
    });
    let merged: Vec<i32> = x[..2 * 64 * ITEMS].chunks(64 * ITEMS).flat_map(|tile| sorted(tile.to_vec())).collect();
    let of_64 = vec![input(&x[..merged.len()]), output::<i32>(merged.len())];
    vec![
        blocks("radix_sort", &x, vec![keys, places]),
        Problem::line(
            "radix_sort_descending",
            BLOCKS as u32,
            THREADS as u32,
            vec![input(&floats), output::<f32>(floats.len())],
            exactly(vec![descending.collect()]),
        ),
        Problem::line("merge_sort", 2, 64, of_64, exactly(vec![merged])),
    ]
}

fn movements() -> Vec<Problem> {
    let x = items(100_000);
    let striped = tiles(&x, |tile| (0..TILE).map(|i| tile[i % ITEMS * THREADS + i / ITEMS]).collect());
    let scattered = tiles(&x, |tile| {
        let mut places = vec![0; TILE];
        tile.iter().enumerate().for_each(|(i, &x)| places[i * 5 % TILE] = x);
        places
    });
    let count = 301;
    let part: Vec<i32> = x[..count].iter().enumerate().map(|(i, &x)| x * 3 + (i / ITEMS) as i32).collect();
    let part = [part, vec![-7; TILE - count]].concat();
    let kept = Argument::Memory(Memory::Updated(bytes(&[-7i32; TILE])), Form::Pointer);
    vec![
        blocks("exchange", &x, vec![striped, x.clone(), scattered]),
        Problem::line(
            "load_and_store",
            1,
            THREADS as u32,
            vec![input(&x[..TILE]), kept, value(count as i32)],
            exactly(vec![part]),
        ),
    ]
}

fn neighbour_problems() -> Vec<Problem> {
    let x = items(3);
    let bins = tiles(&x, |tile| (0..16).map(|bin| tile.iter().filter(|&&x| x & 15 == bin).count() as i32).collect());
    let flags = |edge: usize, step: fn(usize) -> usize| {
        tiles(&x, |tile| (0..TILE).map(|i| i32::from(i == edge || tile[i] != tile[step(i)])).collect())
    };
    let (heads, tails) = (flags(0, |i| i - 1), flags(TILE - 1, |i| i + 1));
    let before = |tile: &[i32], i: usize| if i == 0 { 0 } else { tile[i - 1] };
    let differences = tiles(&x, |tile| (0..TILE).map(|i| tile[i] - before(tile, i)).collect());
    let rotated = tiles(&x, |tile| (0..THREADS).map(|i| tile[(i + 7) % THREADS * ITEMS]).collect());
    vec![
        blocks("histogram_sort", &x, vec![bins.clone()]),
        blocks("histogram_atomic", &x, vec![bins]),
        blocks("neighbours", &x, vec![heads, tails, differences, rotated]),
    ]
}

fn warp_problems() -> Problem {
    let x = items(1000);
    let first = |tile: &[i32], thread: usize| tile[thread * ITEMS];
    let sums = tiles(&x, |tile| (0..THREADS / 8).map(|g| (0..8).map(|i| first(tile, g * 8 + i)).sum()).collect());
    let before =
        tiles(&x, |tile| (0..THREADS).map(|thread| (thread / 8 * 8..thread).map(|i| first(tile, i)).sum()).collect());
    let begins = |thread: usize| thread.is_multiple_of(5) || thread.is_multiple_of(32);
    let segments = tiles(&x, |tile| {
        let end = |thread: usize| (thread + 1..THREADS).find(|&i| begins(i)).unwrap_or(THREADS);
        let sum = |thread: usize| (thread..end(thread)).map(|i| tile[i * ITEMS + 1]).sum();
        (0..THREADS).map(|thread| if begins(thread) { sum(thread) } else { 0 }).collect()
    });
    let in_order = x.chunks(32 * ITEMS).flat_map(|warp| sorted(warp.to_vec())).collect();
    blocks("warps", &x, vec![sums, before, segments, in_order])
}

pub fn problems() -> Vec<Problem> {
    let lists = [reductions(), scans(), sorts(), movements(), neighbour_problems(), vec![warp_problems()]];
    // NVIDIA's compiler loads four words where CUB reads three, and marks that in a pragma.
    lists.into_iter().flatten().map(|problem| Problem { poison: true, ..problem }).collect()
}

#[test]
fn all_results_are_correct() {
    check(PTX, problems());
}

#[test]
fn every_kernel_is_supported() {
    let module = PtxModule::parse(PTX).unwrap();
    assert_eq!(module.entries().len(), problems().len());
    module.check().unwrap_or_else(|error| panic!("{error}"));
}
