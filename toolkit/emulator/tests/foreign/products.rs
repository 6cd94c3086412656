//! Warp group products on tiles that tensor copies load. They cover every number of columns, both orders of both
//! factors, a first factor in registers, all swizzles, and tiles that extend past their tensor. A script wrote the
//! kernels, and NVIDIA's assembler accepts them.

use emulator::{LaunchOptions, PtxModule, Swizzle, TensorMap};
use half::{bf16, f16};

use crate::problem::{Argument, Form, Judge, Memory, Problem, bytes, input, output, value};

pub const PTX: &str = include_str!("products.ptx");

const ROWS: usize = 64;
/// The depth of a tile and of the tensors.
const DEPTH: usize = 64;
const DEEP: usize = 56;
/// The number of steps of depth 16.
const STEPS: usize = DEPTH / 16;

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128];

/// The storage of a factor: contiguous along the depth (`Rows`), contiguous across it (`Columns`), or in registers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Rows,
    Columns,
    Registers,
}

/// The properties that a kernel's name encodes.
#[derive(Clone, Copy)]
struct Shape {
    bf16: bool,
    half_sums: bool,
    columns: usize,
    orders: [Order; 2],
    negative: bool,
}

impl Shape {
    fn of(name: &str) -> Self {
        let parts: Vec<&str> = name.split('_').collect();
        let order = |letter| match letter {
            'r' => Order::Rows,
            'c' => Order::Columns,
            _ => Order::Registers,
        };
        let mut orders = parts[4].chars().map(order);
        Self {
            bf16: parts[1] == "bf16",
            half_sums: parts[0] == "f16",
            columns: parts[3][1..].parse().unwrap(),
            orders: std::array::from_fn(|_| orders.next().unwrap()),
            negative: parts.len() == 6,
        }
    }

    fn bits(&self, number: i32) -> u16 {
        if self.bf16 { bf16::from_f32(number as f32).to_bits() } else { f16::from_f32(number as f32).to_bits() }
    }
}

/// A factor. A tile has `rows` rows (columns, for the second factor), and its tensor only `tall`.
struct Factor {
    rows: usize,
    tall: usize,
    order: Order,
    swizzle: Swizzle,
    place: usize,
    number: fn(usize, usize) -> i32,
}

impl Factor {
    /// The number at a position of the tile. Positions outside the tensor are zero.
    fn at(&self, row: usize, k: usize) -> i32 {
        if row < self.tall && k < DEEP { (self.number)(row, k) } else { 0 }
    }

    /// The width of the swizzle pattern in bytes.
    fn span(&self) -> usize {
        match self.swizzle {
            Swizzle::None => 16,
            Swizzle::Bytes32 => 32,
            Swizzle::Bytes64 => 64,
            Swizzle::Bytes128 => 128,
        }
    }

    /// The size of a tile in its contiguous dimension and in the other one.
    fn tile(&self) -> [usize; 2] {
        if self.order == Order::Rows { [DEPTH, self.rows] } else { [self.rows, DEPTH] }
    }

    /// The number of boxes and the bytes of each. A box is as wide as the swizzle pattern.
    fn boxes(&self) -> [usize; 2] {
        let [inner, outer] = self.tile();
        [inner.div_ceil(self.span() / 2), outer * self.span()]
    }

    fn end(&self) -> usize {
        let [count, bytes] = self.boxes();
        (self.place + count * bytes).next_multiple_of(1024)
    }

    /// The tensor argument. Each row has padding that holds other values.
    fn argument(&self, shape: &Shape) -> Argument {
        let [inner, outer] = if self.order == Order::Rows { [DEEP, self.tall] } else { [self.tall, DEEP] };
        let pitch = inner.next_multiple_of(8) + 8;
        let mut contents = vec![shape.bits(7); pitch * outer];
        for row in 0..self.tall {
            for k in 0..DEEP {
                let at = if self.order == Order::Rows { row * pitch + k } else { k * pitch + row };
                contents[at] = shape.bits(self.at(row, k));
            }
        }
        let map = TensorMap {
            base: 0,
            element_bytes: 2,
            dimensions: vec![inner as u64, outer as u64],
            strides: vec![2 * pitch as u64],
            tile: vec![self.span() as u32 / 2, self.tile()[1] as u32],
            swizzle: self.swizzle,
        };
        Argument::Memory(Memory::Input(bytes(&contents)), Form::Map(map))
    }

    /// The number of boxes, their distance in the tensor, their distance in shared memory, and the first offset.
    fn words(&self) -> [u32; 4] {
        let [count, bytes] = self.boxes();
        [count, self.span() / 2, bytes, self.place].map(|word| word as u32)
    }

    /// The matrix descriptor of a step, by the canonical layouts of the PTX ISA.
    fn descriptor(&self, step: usize) -> u64 {
        let (span, [_, bytes]) = (self.span(), self.boxes());
        let (start, leading, stride) = match (self.order, self.swizzle) {
            (Order::Rows, Swizzle::None) => (2 * step * bytes, bytes, 128),
            (Order::Rows, _) => (32 * step / span * bytes + 32 * step % span, 16, 8 * span),
            (_, Swizzle::None) => (256 * step, 128, bytes),
            _ => (16 * step * span, bytes, 8 * span),
        };
        let mode = [0, 3, 2, 1][SWIZZLES.iter().position(|&swizzle| swizzle == self.swizzle).unwrap()];
        let field = |value: usize| (value as u64) >> 4;
        field(self.place + start) | field(leading) << 16 | field(stride) << 32 | mode << 62
    }

    /// The register fragments of each thread, for each step.
    fn fragments(&self, shape: &Shape) -> Vec<u32> {
        let pair = |row, k| u32::from(shape.bits(self.at(row, k))) | u32::from(shape.bits(self.at(row, k + 1))) << 16;
        let of_thread = |(step, thread): (usize, usize)| {
            let (row, k) = (thread / 32 * 16 + thread % 32 / 4, 16 * step + thread % 4 * 2);
            [pair(row, k), pair(row + 8, k), pair(row, k + 8), pair(row + 8, k + 8)]
        };
        (0..STEPS).flat_map(|step| (0..128).map(move |thread| (step, thread))).flat_map(of_thread).collect()
    }
}

/// Checks the sums element by element.
fn judge(shape: Shape, a: Factor, b: Factor) -> Judge {
    Box::new(move |outputs| {
        let count = if shape.half_sums { shape.columns / 4 } else { shape.columns / 2 };
        for (row, column) in (0..ROWS).flat_map(|row| (0..shape.columns).map(move |column| (row, column))) {
            let sum: i32 = (0..DEPTH).map(|k| a.at(row, k) * b.at(column, k)).sum();
            let expected = if shape.negative { -sum } else { sum } as f32;
            let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            let index = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
            let word = if shape.half_sums { index / 2 } else { index };
            let word: [u8; 4] = std::array::from_fn(|i| outputs[0][4 * (thread * count + word) + i]);
            let word = u32::from_le_bytes(word);
            let found = if shape.half_sums {
                f16::from_bits((word >> (16 * (index % 2))) as u16).to_f32()
            } else {
                f32::from_bits(word)
            };
            if found != expected {
                return Err(format!("row {row}, column {column} is {found} and should be {expected}"));
            }
        }
        Ok(())
    })
}

pub fn problem(kernel: &'static str, swizzles: [Swizzle; 2]) -> Problem {
    let shape = Shape::of(kernel);
    let factor = |order, swizzle, rows, tall, place, number| Factor { rows, tall, order, swizzle, place, number };
    let number_of_a = |row: usize, k: usize| (row * 3 + k * 5) as i32 % 11 - 5;
    let number_of_b = |column: usize, k: usize| (column * 7 + k * k) as i32 % 9 - 4;
    let a = factor(shape.orders[0], swizzles[0], ROWS, 50, 0, number_of_a);
    let loaded = shape.orders[0] != Order::Registers;
    let place = if loaded { a.end() } else { 0 };
    let b = factor(shape.orders[1], swizzles[1], shape.columns, shape.columns - 3, place, number_of_b);
    let of_boxes = |factor: &Factor| factor.boxes().into_iter().product::<usize>();
    let expected = of_boxes(&b) + if loaded { of_boxes(&a) } else { 0 };
    let boxes = [&a.words()[..], &b.words()[..], &[expected as u32, STEPS as u32]].concat();
    let steps: Vec<u64> = (0..STEPS).flat_map(|step| [a.descriptor(step), b.descriptor(step)]).collect();
    let fragments = if loaded { value(0u64) } else { input(&a.fragments(&shape)) };
    let words = 128 * if shape.half_sums { shape.columns / 4 } else { shape.columns / 2 };
    let arguments = vec![
        a.argument(&shape),
        b.argument(&shape),
        Argument::Value(emulator::Arg::Bytes(bytes(&boxes))),
        input(&steps),
        fragments,
        output::<u32>(words),
    ];
    Problem::line(kernel, 1, 128, arguments, judge(shape, a, b))
}

/// The names of all kernels.
fn kernels() -> Vec<&'static str> {
    PTX.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next()).collect()
}

#[test]
fn all_results_are_correct() {
    let module = PtxModule::parse(PTX).unwrap();
    module.check().unwrap_or_else(|error| panic!("{error}"));
    for (index, kernel) in kernels().into_iter().enumerate() {
        for (turn, swizzle) in SWIZZLES.into_iter().enumerate() {
            // The swizzle of the second factor varies from kernel to kernel.
            let other = SWIZZLES[(turn + index) % 4];
            let options = LaunchOptions { seed: (index % 3) as u64, ..LaunchOptions::default() };
            let result = problem(kernel, [swizzle, other]).run(PTX, &module, &options);
            result.unwrap_or_else(|error| panic!("{kernel}, {swizzle:?} and {other:?}: {error}"));
        }
    }
}

#[test]
fn every_combination_is_covered() {
    let shapes: Vec<Shape> = kernels().into_iter().map(Shape::of).collect();
    for columns in (8..=256).step_by(8) {
        assert!(shapes.iter().any(|shape| shape.columns == columns), "{columns} columns");
    }
    for (bf16, half_sums) in [(false, false), (true, false), (false, true)] {
        for first in [Order::Rows, Order::Columns, Order::Registers] {
            for second in [Order::Rows, Order::Columns] {
                let mut of = shapes.iter().filter(|shape| (shape.bf16, shape.half_sums) == (bf16, half_sums));
                assert!(of.any(|shape| shape.orders == [first, second]), "{bf16} {half_sums} {first:?} {second:?}");
            }
        }
    }
}
