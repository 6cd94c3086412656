//! Layers that keep a state: `causal_convolution`, `recur_heads`.

use kernels::recurrent::plan::{HeadShape, RecurrentShape, UnsupportedRecurrence};
use workbench::cases::recurrent::{SMALL, all, delta_net};
use workbench::number::Type;
use workbench::recurrent::RecurrentProblem;

use crate::frame::gpu::{Gpu, TARGETS};

/// Sequences that begin and end anywhere, with padding between them. Most states change in the block that they are read
/// from, and most blocks of a step are absent.
#[test]
fn states_change_in_place() {
    let tiled = HeadShape { tiled: true, ..delta_net(2, 6, 16, 8) };
    let narrow = RecurrentShape { kernel: 4, channels: 8, heads: None };
    let layers = SMALL.into_iter().chain([RecurrentShape::with_heads(3, tiled), narrow]);
    for (i, shape) in layers.enumerate() {
        for (j, ty) in Type::ALL.into_iter().enumerate() {
            let mut gpu = Gpu::new(TARGETS[(i + j) % 2].0);
            for (seed, block_size) in [(1, 5), (2, 16), (3, 64)] {
                let sequences = vec![[0, 1], [0, 0], [1, 1], [15, 2], [7, 9], [0, 40], [64, 1], [33, 70], [80, 34]];
                let problem = RecurrentProblem { ty, shape, block_size, sequences, in_place: true, seed };
                gpu.seed(seed);
                all(problem).for_each(|case| drop(gpu.run(&case)));
            }
        }
    }
}

#[test]
fn layers_without_kernels_are_refused() {
    let delta = |key_dim, value_dim| RecurrentShape::with_heads(4, delta_net(2, 4, key_dim, value_dim)).check();
    assert_eq!(delta(128, 128), Ok(()));
    assert_eq!(delta(136, 128), Err(UnsupportedRecurrence::Keys(136)));
    assert_eq!(delta(100, 128), Err(UnsupportedRecurrence::Keys(100)));
    assert_eq!(delta(64, 12), Err(UnsupportedRecurrence::Values(12)));
    let convolution = |kernel, channels| RecurrentShape { kernel, channels, heads: None }.check();
    assert_eq!(convolution(3, 64), Ok(()));
    assert_eq!(convolution(5, 64), Err(UnsupportedRecurrence::Kernel(5)));
    assert_eq!(convolution(3, 60), Err(UnsupportedRecurrence::Channels(60)));
}
