//! Functions that only Hopper has: asynchronous copies, mbarriers, clusters.

use ::intrinsics::*;
use cuda_std::launch::{LaunchShape, TensorTile, TileDimension};
use cuda_std::ptx::pattern::TilePattern;

use super::{vectors, words};
use crate::frame::gpu::Gpu;

pub fn every_function(gpu: &mut Gpu) {
    bulk(gpu);
    tensors(gpu);
    cluster(gpu);
    multicast(gpu);
    control(gpu);
    stmatrix(gpu);
}

fn bulk(gpu: &mut Gpu) {
    let a = words(1, 512);
    let out = gpu.alloc::<u32>("out", 512);
    let call = v_bulk { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 128), call) };
    assert!(gpu.download(out).into_iter().eq(a.into_iter().map(|word| word.wrapping_add(1))));
}

/// Describes a tensor at an address, with these sizes and tiles.
fn tensor(address: u64, element_bytes: u32, dimensions: &[(u64, u32)], pattern: TilePattern) -> TensorTile {
    let mut stride = u64::from(element_bytes);
    let all: Vec<_> = dimensions
        .iter()
        .map(|&(size, tile)| {
            let dimension = TileDimension { size, stride, tile };
            stride *= size;
            dimension
        })
        .collect();
    match *all.as_slice() {
        [a] => TensorTile::new(address, element_bytes, pattern, [a]),
        [a, b] => TensorTile::new(address, element_bytes, pattern, [a, b]),
        [a, b, c] => TensorTile::new(address, element_bytes, pattern, [a, b, c]),
        [a, b, c, d] => TensorTile::new(address, element_bytes, pattern, [a, b, c, d]),
        [a, b, c, d, e] => TensorTile::new(address, element_bytes, pattern, [a, b, c, d, e]),
        _ => panic!("one to five dimensions"),
    }
}

/// Tiles of every rank and pattern, inside a tensor and across its edges.
fn tensors(gpu: &mut Gpu) {
    use TilePattern::{Bytes32, Bytes64, Bytes128, Plain};
    /// Sizes and tiles, bytes of an element, pattern, and the tile's first element.
    type Shape = (&'static [(u64, u32)], u32, TilePattern, [i32; 5]);
    let shapes: [Shape; 6] = [
        (&[(1000, 256)], 8, Plain, [900, 0, 0, 0, 0]),
        (&[(80, 32), (50, 32)], 4, Bytes128, [60, 30, 0, 0, 0]),
        (&[(40, 16), (12, 8), (9, 8)], 4, Bytes64, [-3, 8, 2, 0, 0]),
        (&[(24, 8), (10, 8), (6, 4), (7, 4)], 4, Bytes32, [8, -1, 0, 5, 0]),
        (&[(8, 4), (5, 4), (6, 4), (5, 4), (6, 4)], 4, Plain, [4, 3, -2, 0, 1]),
        (&[(64, 64), (40, 32)], 2, Bytes128, [0, 20, 0, 0, 0]),
    ];
    for (dimensions, bytes, pattern, corner) in shapes {
        let all: u64 = dimensions.iter().map(|&(size, _)| size).product();
        let tile: Vec<_> = dimensions.iter().map(|&(_, tile)| (u64::from(tile), tile)).collect();
        let tile_bytes = bytes as usize * tile.iter().map(|&(size, _)| size as usize).product::<usize>();
        let data = words(7, (all * u64::from(bytes) / 4) as usize);
        let (from, to) = (gpu.upload("from", &data), gpu.upload("to", &vec![7u32; tile_bytes / 4]));
        let call = v_tensor {
            from: tensor(from.ptr::<u32>().address(), bytes, dimensions, pattern),
            to: tensor(to.ptr::<u32>().address(), bytes, &tile, pattern),
            corner: gpu.upload("corner", &corner).ptr(),
            rank: dimensions.len() as u32,
            bytes: tile_bytes as u32,
        };
        // SAFETY: the tensors are as described.
        unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
        let (source, found): (&[u8], _) = (bytemuck::cast_slice(&data), gpu.download(to));
        let found: &[u8] = bytemuck::cast_slice(&found);
        for (index, element) in found.chunks_exact(bytes as usize).enumerate() {
            let (mut rest, mut place, mut stride, mut inside) = (index as i64, 0i64, 1i64, true);
            for (&(size, tile), &corner) in dimensions.iter().zip(&corner) {
                let at = rest % i64::from(tile) + i64::from(corner);
                rest /= i64::from(tile);
                inside &= (0..size as i64).contains(&at);
                place += at * stride;
                stride *= size as i64;
            }
            let expected = if inside { &source[place as usize * bytes as usize..][..bytes as usize] } else { &[0; 8] };
            assert_eq!(element, &expected[..bytes as usize], "{dimensions:?}, {pattern:?}, element {index}");
        }
    }
}

fn cluster(gpu: &mut Gpu) {
    let a = words(2, 128);
    let out = gpu.alloc::<[u32; 4]>("out", 128);
    let call = v_cluster { a: gpu.upload("a", &a).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have an element for each thread, and the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(4, 32).with_clusters([2, 1, 1]), call) };
    for (i, found) in gpu.download(out).into_iter().enumerate() {
        assert_eq!(found, [i as u32 / 32 % 2, 2, a[i ^ 32], a[i ^ 32]], "thread {i}");
    }
}

fn multicast(gpu: &mut Gpu) {
    let (a, matrix) = (words(3, 64), words(4, 64));
    let out = gpu.alloc::<u32>("out", 256);
    let rows = gpu.upload("matrix", &matrix).ptr::<u32>().address();
    let call = v_multicast {
        a: gpu.upload("a", &a).ptr(),
        matrix: tensor(rows, 2, &[(64, 64), (2, 2)], TilePattern::Plain),
        out: out.mut_ptr(),
    };
    // SAFETY: arrays have the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(2, 32).with_clusters([2, 1, 1]), call) };
    assert_eq!(gpu.download(out), [a.clone(), matrix.clone(), a, matrix].concat());
}

fn control(gpu: &mut Gpu) {
    let out = gpu.alloc::<u32>("out", 128);
    // SAFETY: the array has an element for each thread.
    unsafe { gpu.launch(LaunchShape::linear(1, 128), v_elect { out: out.mut_ptr() }) };
    for warp in gpu.download(out).chunks_exact(32) {
        assert_eq!(warp.iter().sum::<u32>(), 1);
    }
}

fn stmatrix(gpu: &mut Gpu) {
    let registers = vectors(5, 32);
    let out = gpu.alloc::<[u16; 8]>("out", 88);
    let call = v_stmatrix { a: gpu.upload("a", &registers).ptr(), out: out.mut_ptr() };
    // SAFETY: arrays have the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 32), call) };
    let halves: &[u16] = bytemuck::cast_slice(&registers);
    let expected =
        |matrix: usize, row: usize, column: usize| halves[(4 * row + column / 2) * 8 + 2 * matrix + column % 2];
    let stored = [(0, false), (0, false), (1, false)]
        .into_iter()
        .chain((0..4).map(|matrix| (matrix, false)))
        .chain((0..4).map(|matrix| (matrix, true)));
    let found = gpu.download(out);
    for (place, (matrix, transposed)) in stored.enumerate() {
        for (row, column) in (0..64).map(|i| (i / 8, i % 8)) {
            let truth = if transposed { expected(matrix, column, row) } else { expected(matrix, row, column) };
            assert_eq!(found[8 * place + row][column], truth, "matrix {place}, row {row}, column {column}");
        }
    }
}
