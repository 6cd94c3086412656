//! Sums that are added to the residual stream and normalised.

use kernels::norm::NormShape;
use kernels::norm::SumNorm;
use workbench::cases::norm::{EPS, NormProblem, rounding};
use workbench::group::GroupNorm;
use workbench::number::relative_error;

use super::*;

/// Rows on several devices.
#[derive(Clone, Copy, Debug)]
struct Rows {
    target: usize,
    ty: Type,
    kind: SumNorm,
    ranks: usize,
    shots: u32,
    rows: usize,
    width: usize,
    blocks: u32,
    seed: u64,
    place: MailboxPlace,
}

/// Asserts that sums with the residual, in `f64`, are rounded once, that their norms are as precise as a norm alone,
/// and that all devices have the same bits. The second of two rounds adds to the result of the first.
fn assert_rows(at: Rows) {
    let Rows { target, ty, kind, ranks, shots, rows, width, blocks, seed, place } = at;
    let group = DeviceGroup::new(TARGETS[target].1, ty, ranks, seed, place).unwrap();
    let of_all = |numbers: Vec<u16>| vec![numbers; ranks];
    let mut random = ProblemRng(seed);
    let [weight, bias] = [0, 1].map(|_| random.bits(ty, width));
    let layer = kind == SumNorm::Layer;
    let problem =
        NormProblem { ty, layer, rows, width, residual: true, weight: true, bias: layer, neutral: false, seed };
    let mut stream: Vec<u16> = numbers(ty, 1, rows * width, seed + 10).remove(0);
    let x = group.upload("x", &of_all(stream.clone())).unwrap();
    let [weights, biases] = [&weight, &bias].map(|w| group.upload("weight or bias", &of_all(w.clone())).unwrap());
    let out = group.upload("out", &of_all(vec![ty.nan(); rows * width])).unwrap();
    let shape = ExchangeShape::of_rows(rows as u32, NormShape::of(width as u32).unwrap(), blocks);
    for round in 0..2 {
        let numbers = numbers(ty, ranks, rows * width, seed + round);
        let parts = group.upload("part", &numbers).unwrap();
        for rank in (0..ranks).rev() {
            let (weight, bias, out) = (Some(&weights[rank]), layer.then_some(&biases[rank]), &out[rank]);
            let norm = Some(GroupNorm { kind, width: width as u32, weight, bias, out, eps: EPS });
            group.sum(rank, GroupSum { x: &x[rank], part: Some(&parts[rank]), shots, norm, shape }).unwrap();
        }
        let found = group.download(&x).unwrap_or_else(|error| panic!("{at:?}: {error}"));
        let sum = |i: usize| ty.number(stream[i]) + numbers.iter().map(|of_one| ty.number(of_one[i])).sum::<f64>();
        stream = (0..rows * width).map(|i| ty.bits(sum(i))).collect();
        assert!(found.iter().all(|of_one| *of_one == stream), "{at:?}, round {round}");
        let normed = group.download(&out).unwrap();
        assert!(normed.iter().all(|of_one| *of_one == normed[0]), "{at:?}, round {round}: bits differ between devices");
        let truth = stream.chunks_exact(width).flat_map(|row| problem.reference(row, &weight, &bias));
        let truth: Vec<f64> = truth.collect();
        let error = relative_error(normed[0].iter().map(|&v| ty.number(v)), &truth) / rounding(ty);
        assert!(error <= 1.0, "{at:?}, round {round}: the error is {error} times the allowed one");
    }
}

#[test]
fn rows_of_any_number_and_width_are_added_and_normalised() {
    // One row and several, in one block and in several, in one chunk and in several. Also rows that just fit.
    let sizes = [(1, 8, 16), (3, 264, 2), (9, 768, 4), (3, 4104, 2), (3, 16_384, 2), (34, 512, 1)];
    for (i, (rows, width, blocks)) in sizes.into_iter().enumerate() {
        for (j, ranks) in [2, 4, 8].into_iter().enumerate() {
            let kinds = [SumNorm::Rms, SumNorm::Layer].into_iter().enumerate();
            // On eight devices a size has one kind.
            for (k, kind) in kinds.filter(|(k, _)| ranks < 8 || *k == i / 2 % 2) {
                let shots = 1 + ((i + j) % 2) as u32;
                let place = if (i + j + k) % 4 == 3 { MailboxPlace::Host } else { MailboxPlace::Devices };
                let (target, ty, seed) = ((j + k) % 2, Type::ALL[(i + k) % 2], i as u64);
                assert_rows(Rows { target, ty, kind, ranks, shots, rows, width, blocks, seed, place });
            }
        }
    }
}

#[test]
fn norms_hold_in_any_order_of_devices_warps_and_blocks() {
    for seed in 1..7 {
        for (kind, shots) in [(SumNorm::Rms, 1), (SumNorm::Layer, 2)] {
            let (target, ty) = (seed as usize % 2, Type::F16);
            let (ranks, rows, width, blocks, place) = (3, 7, 776, 2, MailboxPlace::Devices);
            assert_rows(Rows { target, ty, kind, ranks, shots, rows, width, blocks, seed, place });
        }
    }
}

/// The sums lose digits, and thus show that ranks are added in order and the residual stream last.
#[test]
fn the_residual_stream_is_added_last_and_rounded_once() {
    let ty = Type::F16;
    let mut random = ProblemRng(7);
    let [stream, first, second] = [0, 1, 2].map(|_| random.bits(ty, 256));
    let group = DeviceGroup::new(TARGETS[1].1, ty, 2, 1, MailboxPlace::Devices).unwrap();
    let x = group.upload("x", &vec![stream.clone(); 2]).unwrap();
    let parts = group.upload("part", &[first.clone(), second.clone()]).unwrap();
    for rank in 0..2 {
        group.sum(rank, GroupSum { part: Some(&parts[rank]), ..plain(&x[rank], 1, 1) }).unwrap();
    }
    let [stream, first, second] =
        [stream, first, second].map(|bits| bits.into_iter().map(|bits| ty.number(bits) as f32).collect::<Vec<_>>());
    let wanted: Vec<u16> = (0..256).map(|i| ty.bits(f64::from(stream[i] + (first[i] + second[i])))).collect();
    assert_eq!(group.download(&x).unwrap(), vec![wanted; 2]);
}

/// Removes the barrier between the stored sums and the norm that reads them, or the barrier between two rows.
#[test]
fn a_missing_barrier_before_a_norm_is_noticed() {
    let mutants = crate::frame::mutate::without_each(TARGETS[0].1, "all_reduce_f16", &["bar.sync", "barrier.sync"]);
    let noticed = |ptx: &str| {
        (0..6).any(|seed| {
            let (ty, ranks, width) = (Type::F16, 2, 768);
            let group = DeviceGroup::new(ptx, ty, ranks, seed, MailboxPlace::Devices).unwrap();
            [SumNorm::Rms, SumNorm::Layer].into_iter().zip([1, 2]).any(|(kind, shots)| {
                let numbers = numbers(ty, ranks, 5 * width, seed);
                let [x, parts, out] = ["x", "part", "out"].map(|name| group.upload(name, &numbers).unwrap());
                let weight = group.upload("weight", &vec![vec![ty.bits(1.0); width]; ranks]).unwrap();
                let shape = ExchangeShape::of_rows(5, NormShape::of(width as u32).unwrap(), 1);
                let launched: Result<()> = (0..ranks).try_for_each(|rank| {
                    let weight = Some(&weight[rank]);
                    let norm = GroupNorm { kind, width: width as u32, weight, bias: None, out: &out[rank], eps: EPS };
                    let part = Some(&parts[rank]);
                    group.sum(rank, GroupSum { x: &x[rank], part, shots, norm: Some(norm), shape })
                });
                launched.and_then(|()| group.download(&out)).is_err()
            })
        })
    };
    assert!(!noticed(TARGETS[0].1));
    for mutant in mutants {
        assert!(noticed(&mutant.ptx), "all_reduce_f16 without {}", mutant.removed);
    }
}
