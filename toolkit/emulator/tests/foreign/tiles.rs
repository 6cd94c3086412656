//! Tiles of tensors with one to five dimensions, copied to shared memory and to another tensor, with all swizzles and
//! past all edges. NVIDIA's compiler compiled the kernels from C++.

use emulator::{Arg, LaunchOptions, PtxModule, Swizzle, TensorMap};

use crate::problem::{Argument, Form, Memory, Number, Problem, exactly, output, value};

pub const PTX: &str = include_str!("tiles.ptx");

/// The sizes of the tile and of the two tensors in all dimensions but the first.
const TILE: [usize; 4] = [3, 2, 2, 2];
const FROM: [usize; 4] = [5, 4, 3, 2];
const TO: [usize; 4] = [4, 3, 3, 3];

/// A swizzle, the bytes per tile row, and how many rows share 128 bytes.
const SWIZZLES: [(Swizzle, usize, usize); 4] =
    [(Swizzle::None, 48, 1), (Swizzle::Bytes32, 32, 4), (Swizzle::Bytes64, 64, 2), (Swizzle::Bytes128, 128, 1)];

/// A tensor whose elements have `element` bytes.
#[derive(Clone)]
struct Tensor {
    element: usize,
    sizes: Vec<usize>,
    tile: Vec<usize>,
    swizzle: Swizzle,
}

impl Tensor {
    /// The bytes from one index to the next, in each dimension. Rows are padded.
    fn strides(&self) -> Vec<usize> {
        let mut strides = vec![self.element];
        for axis in 1..=self.sizes.len() {
            let dense = strides[axis - 1] * self.sizes[axis - 1];
            strides.push(if axis == 1 { dense.next_multiple_of(16) + 16 } else { dense });
        }
        strides
    }

    fn bytes(&self) -> usize {
        self.strides()[self.sizes.len()].max(16)
    }

    fn map(&self) -> TensorMap {
        let rank = self.sizes.len();
        TensorMap {
            base: 0,
            element_bytes: self.element,
            dimensions: self.sizes.iter().map(|&size| size as u64).collect(),
            strides: self.strides()[1..rank].iter().map(|&stride| stride as u64).collect(),
            tile: self.tile.iter().map(|&size| size as u32).collect(),
            swizzle: self.swizzle,
        }
    }

    /// The offset in the tensor of each element of a tile at a corner, or `None` if it is outside.
    fn places(&self, corner: &[i32]) -> Vec<Option<usize>> {
        let strides = self.strides();
        let place = |index: usize| {
            let (mut rest, mut place) = (index, 0);
            for axis in 0..self.sizes.len() {
                let at = corner[axis] + (rest % self.tile[axis]) as i32;
                rest /= self.tile[axis];
                let at = usize::try_from(at).ok().filter(|&at| at < self.sizes[axis])?;
                place += at * strides[axis];
            }
            Some(place)
        };
        (0..self.tile.iter().product()).map(place).collect()
    }
}

/// The offset of a tile byte in shared memory. The row number permutes the 16-byte pieces of a row.
fn swizzled(at: usize, (swizzle, width, rows): (Swizzle, usize, usize)) -> usize {
    if swizzle == Swizzle::None {
        return at;
    }
    let (row, column) = (at / width, at % width);
    let piece = (column / 16) ^ (row / rows % (width / 16));
    row * width + piece * 16 + column % 16
}

fn problem(rank: usize, element: usize, form: (Swizzle, usize, usize), corners: [&[i32]; 2]) -> Problem {
    let inner = form.1 / element;
    let tile: Vec<usize> = [&[inner][..], &TILE[..rank - 1]].concat();
    let tensor = |first: usize, others: [usize; 4]| Tensor {
        element,
        sizes: [&[first][..], &others[..rank - 1]].concat(),
        tile: tile.clone(),
        swizzle: form.0,
    };
    let (from, to) = (tensor(inner + inner / 2 + 1, FROM), tensor(inner + 3, TO));
    let contents: Vec<u8> = (0..from.bytes()).map(|i| (i * 7 + i / 251) as u8).collect();
    let size = tile.iter().product::<usize>() * element;

    let (mut raw, mut moved) = (vec![0; size], vec![0xaa; to.bytes()]);
    let places = from.places(corners[0]).into_iter().zip(to.places(corners[1]));
    for (index, (place, target)) in places.enumerate() {
        for byte in 0..element {
            let number = place.map_or(0, |place| contents[place + byte]);
            raw[swizzled(index * element + byte, form)] = number;
            if let Some(target) = target {
                moved[target + byte] = !number;
            }
        }
    }
    let corners = corners.map(|corner| (0..5).map(|axis| corner.get(axis).copied().unwrap_or(0)));
    let corners: Vec<u8> = corners.into_iter().flatten().flat_map(i32::bytes).collect();
    let memory = |memory, tensor: &Tensor| Argument::Memory(memory, Form::Map(tensor.map()));
    Problem::line(
        ["copy_1", "copy_2", "copy_3", "copy_4", "copy_5"][rank - 1],
        1,
        64,
        vec![
            memory(Memory::Input(contents), &from),
            memory(Memory::Updated(vec![0xaa; to.bytes()]), &to),
            Argument::Value(Arg::Bytes(corners)),
            value(size as u32),
            output::<u8>(size),
        ],
        exactly(vec![moved, raw]),
    )
}

/// All ranks, element sizes and swizzles, with tiles inside the tensors and past each of their edges.
pub fn problems() -> Vec<Problem> {
    let corners: [[&[i32]; 2]; 4] = [
        [&[0; 5], &[0; 5]],
        [&[1, 1, 2, 1, 0], &[3, 1, 1, 1, 1]],
        [&[-2, -1, -1, 1, -1], &[-3, 2, -1, 2, 1]],
        [&[7, 3, 3, 2, 1], &[1, -2, 2, -1, 2]],
    ];
    let mut problems = Vec::new();
    for rank in 1..=5 {
        for element in [1, 2, 4, 8] {
            for form in SWIZZLES {
                problems.extend(corners.map(|corners| problem(rank, element, form, corners)));
            }
        }
    }
    problems
}

#[test]
fn all_results_are_correct() {
    let module = PtxModule::parse(PTX).unwrap();
    for problem in problems() {
        let run = |seed| problem.run(PTX, &module, &LaunchOptions { seed, ..LaunchOptions::default() });
        (0..2).try_for_each(run).unwrap_or_else(|error| panic!("{}: {error}", problem.kernel));
    }
}
