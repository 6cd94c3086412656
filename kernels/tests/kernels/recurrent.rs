//! Layers that keep a state: `causal_convolution`, `recur_heads`, `prepare_chunks`, `pass_chunks`.

use kernels::recurrent::NO_BLOCK;
use kernels::recurrent::plan::{HeadShape, RecurrentShape, SequenceOperands, UnsupportedRecurrence};
use workbench::cases::recurrent::{Form, SMALL, all, calls, delta_net, heads, place_heads};
use workbench::number::Type;
use workbench::recurrent::{HeadData, PlacedSequences, RecurrentProblem};

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

/// Chunks of long keys, all blocks of threads of a head, and sequences of fewer rows that are left to the other kernel.
#[test]
fn short_sequences_are_left_to_the_recurrent_form() {
    let layers = [delta_net(1, 2, 128, 72), HeadShape { is_delta: false, ..delta_net(1, 4, 128, 64) }];
    for (i, layer) in layers.into_iter().enumerate() {
        for (j, ty) in Type::ALL.into_iter().enumerate() {
            let sequences = vec![[0, 70], [5, 1], [64, 130], [0, 63], [100, 64]];
            let shape = RecurrentShape::with_heads(4, layer);
            let problem = RecurrentProblem { ty, shape, block_size: 16, sequences, in_place: true, seed: 4 };
            let mut gpu = Gpu::new(TARGETS[(i + j) % 2].0);
            gpu.run(&heads(problem, layer, Form::Mixed(64)));
        }
    }
}

/// Tokens before the end of a present block in [`a_known_prefix_gives_the_same_bits`], which is not the end of a tile.
const CUT: u32 = 80;

/// A sequence in chunks, whose state is stored after [`CUT`] tokens. A second launch starts from this state.
#[test]
fn a_known_prefix_gives_the_same_bits() {
    let layers = [delta_net(1, 2, 128, 64), HeadShape { is_delta: false, ..delta_net(1, 2, 128, 64) }];
    for (heads, ty) in layers.into_iter().flat_map(|heads| Type::ALL.map(|ty| (heads, ty))) {
        let shape = RecurrentShape::with_heads(4, heads);
        let (len, block_size) = (150, 16);
        let problem = RecurrentProblem { ty, shape, block_size, sequences: vec![[0, len]], in_place: true, seed: 9 };
        let data = HeadData::new(&problem, heads);
        let mut gpu = Gpu::new(TARGETS[0].0);
        let stride = shape.state_vectors();
        let states = gpu.upload("states", &vec![0.0f32; 4 * (3 * stride) as usize]);
        let inner = (heads.heads * heads.value_dim) as usize;
        let mut run = |start: u32, last: u32| -> Vec<u16> {
            let mut table = vec![NO_BLOCK; len.div_ceil(block_size) as usize];
            table[(CUT / block_size) as usize - 1] = 0;
            *table.last_mut().unwrap() = last;
            let sequences = SequenceOperands {
                states: states.mut_ptr(),
                stride,
                tables: gpu.upload("tables", &table).ptr(),
                table_starts: gpu.upload("table starts", &[0u32]).ptr(),
                query_starts: gpu.upload("query starts", &[start, len]).ptr(),
                contexts: gpu.upload("contexts", &[len]).ptr(),
                block_size,
            };
            let out = gpu.upload("out", &vec![0u16; len as usize * inner]);
            let operands = place_heads(&data, out, gpu.bench()).unwrap();
            let placed = PlacedSequences { operands: sequences, blocks: states };
            let calls = calls(&problem, heads, Form::Chunked, operands, placed, gpu.bench()).unwrap();
            for (shape, call) in calls {
                // SAFETY: the arrays have the layer's shape. The sequence alone uses its blocks.
                unsafe { gpu.launch(shape, call) };
            }
            gpu.download(out)
        };
        let (whole, rest) = (run(0, 1), run(CUT, 2));
        assert!(whole[CUT as usize * inner..] == rest[CUT as usize * inner..], "{heads:?}, {}", ty.label());
        let numbers: Vec<u32> = gpu.download(states).into_iter().map(f32::to_bits).collect();
        let blocks: Vec<&[u32]> = numbers.chunks(4 * stride as usize).collect();
        assert!(blocks[1] == blocks[2] && blocks[0] != blocks[1], "{heads:?}, {}", ty.label());
    }
}
