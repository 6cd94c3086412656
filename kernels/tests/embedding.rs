//! Embeddings and gathered rows on the device under test, bit for bit.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use cuda_std::launch::{Entry, Family};
use frame::gpu::{Gpu, TARGETS};
use frame::number::{Random, Type};
use kernels::embedding::{THREADS, add_positions, embed, floor_bytes, gather_rows, grid};
use kernels::layout::Vector;
use kernels::vector::row_vectors;

/// The numbers' sum in `f32`, rounded once more to the type.
fn sum(ty: Type, a: u16, b: u16) -> u16 {
    ty.bits(f64::from(ty.number(a) as f32 + ty.number(b) as f32))
}

fn rows(table: &[u16], width: usize, rows: impl IntoIterator<Item = usize>) -> Vec<u16> {
    rows.into_iter().flat_map(|r| table[r * width..(r + 1) * width].to_vec()).collect()
}

fn check(width: usize, count: usize, seed: u64) {
    const OFFSET: usize = 2;
    let mut random = Random(seed + 1);
    let vectors = row_vectors(width as u32).unwrap();
    let grid = grid(count as u32, vectors);
    let mut places = |below| -> Vec<u32> { (0..count).map(|_| random.below(below) as u32).collect() };
    let (tokens, positions) = (places(11), places(5));
    for ty in Type::ALL {
        let table = random.bits(ty, 11 * width);
        let learned = random.bits(ty, (5 + OFFSET) * width);
        let gathered = rows(&table, width, tokens.iter().map(|&t| t as usize));
        let added = rows(&learned, width, positions.iter().map(|&p| p as usize + OFFSET));
        let want: Vec<u16> = gathered.iter().zip(&added).map(|(&a, &b)| sum(ty, a, b)).collect();
        for (target, _) in TARGETS {
            let mut gpu = Gpu::new(target);
            gpu.seed(seed);
            let (table, learned) = (gpu.upload("table", &table), gpu.upload("learned positions", &learned));
            let (tokens, positions) = (gpu.upload("tokens", &tokens), gpu.upload("positions", &positions));
            let (out, both) = (gpu.alloc("out", count * width), gpu.alloc("both", count * width));

            let args = (table.ptr::<Vector>(), tokens.ptr(), out.mut_ptr::<Vector>(), vectors);
            let copied = gpu.launch(Entry::of::<gather_rows>(), grid, THREADS, 0, args);
            assert_eq!(gpu.download::<u16>(out), gathered, "{ty:?} {width}");

            let entry = add_positions::instance(&[ty.label()]).unwrap();
            let args = (out.mut_ptr(), learned.ptr(), positions.ptr(), OFFSET as u32, vectors);
            gpu.launch(entry, grid, THREADS, 0, args);
            assert_eq!(gpu.download(out), want, "{ty:?} {width}");

            let entry = embed::instance(&[ty.label()]).unwrap();
            let args =
                (table.ptr(), learned.ptr(), tokens.ptr(), positions.ptr(), OFFSET as u32, both.mut_ptr(), vectors);
            let fused = gpu.launch(entry, grid, THREADS, 0, args);
            assert_eq!(gpu.download(both), want, "{ty:?} {width}");

            if width.is_multiple_of(16) {
                for (report, tables) in [(copied, 1), (fused, 2)] {
                    assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
                    // Each warp reads the row's index as well, a sector a table.
                    let indices = tables * u64::from(grid.0 * grid.1) * u64::from(THREADS / 32) * 32;
                    let floor = floor_bytes(count as u64, vectors.into(), tables);
                    assert!(report.total.sectors * 32 <= floor + indices);
                }
            }
        }
    }
}

#[test]
fn rows_of_any_width_are_embedded() {
    for (width, count, seed) in [(8, 1, 0), (96, 7, 1), (1032, 3, 2), (2048, 4, 3)] {
        check(width, count, seed);
    }
}
