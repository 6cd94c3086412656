//! Kernel launches with their expected results.

use emulator::{Arg, EmulatedDevice, LaunchOptions, PtxModule, Swizzle, TensorMap};
use half::f16;

/// The orders of blocks and warps in which every problem must give the correct result.
pub const ORDERS: std::ops::Range<u64> = 0..5;

/// A number type of an input or output.
pub trait Number: Copy + PartialEq + std::fmt::Debug + 'static {
    fn bytes(self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}
number!(i8, u8, u16, i32, u32, i64, u64, f32, f64, f16);

/// Encodes numbers as bytes.
pub fn bytes<T: Number>(numbers: &[T]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.bytes()).collect()
}

/// Decodes numbers from bytes.
pub fn read<T: Number>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(T::read).collect()
}

/// An argument of a kernel.
pub enum Argument {
    Value(Arg),
    Memory(Memory, Form),
}

/// A device memory argument.
pub enum Memory {
    /// Contents that the kernel does not change.
    Input(Vec<u8>),
    /// A number of bytes that the kernel writes.
    Output(usize),
    /// Contents that the kernel changes.
    Updated(Vec<u8>),
}

/// The form in which a kernel receives memory.
pub enum Form {
    Pointer,
    /// A Numba array, with the element size in bytes and the shape.
    Array(u64, Vec<u64>),
    /// A Triton f16 tensor: its rows and columns, those of a tile, and the swizzle in shared memory.
    Tensor([u64; 2], [u32; 2], Swizzle),
    /// A tensor map, whose base becomes the memory's address.
    Map(TensorMap),
}

/// A pointer argument to input numbers.
pub fn input<T: Number>(numbers: &[T]) -> Argument {
    Argument::Memory(Memory::Input(bytes(numbers)), Form::Pointer)
}

/// A pointer argument to room for `count` output numbers.
pub fn output<T: Number>(count: usize) -> Argument {
    Argument::Memory(Memory::Output(count * size_of::<T>()), Form::Pointer)
}

/// A scalar argument.
pub fn value<T: Number>(number: T) -> Argument {
    Argument::Value(Arg::Bytes(number.bytes()))
}

/// Checks the outputs, which come in argument order. An error says what is wrong.
pub type Judge = Box<dyn Fn(&[Vec<u8>]) -> Result<(), String>>;

/// A launch with its expected results.
pub struct Problem {
    pub kernel: &'static str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub arguments: Vec<Argument>,
    pub judge: Judge,
    /// Whether the kernel reads uninitialised shared memory without using the values.
    pub poison: bool,
}

/// Expects outputs with exactly these numbers, one list per output.
pub fn exactly<T: Number>(expected: Vec<Vec<T>>) -> Judge {
    Box::new(move |outputs| {
        let found: Vec<Vec<T>> = outputs.iter().map(|bytes| read(bytes)).collect();
        let pairs = || found.iter().flatten().zip(expected.iter().flatten());
        let at = pairs().position(|(found, expected)| found != expected);
        match at.and_then(|at| pairs().nth(at).map(|pair| (at, pair))) {
            Some((at, (found, expected))) => Err(format!("number {at} is {found:?} and should be {expected:?}")),
            None if found.len() == expected.len() => Ok(()),
            None => Err("the number of outputs differs".into()),
        }
    })
}

/// Expects one output whose numbers are within `tolerance` of these.
pub fn nearly<T: Number + Into<f64>>(expected: Vec<f64>, tolerance: impl Fn(f64) -> f64 + 'static) -> Judge {
    Box::new(move |outputs| {
        for (at, (found, &expected)) in read::<T>(&outputs[0]).into_iter().zip(&expected).enumerate() {
            let found: f64 = found.into();
            // The comparison is false for NaN, which is never near.
            let is_near = (found - expected).abs() <= tolerance(expected);
            if !is_near {
                return Err(format!("number {at} is {found} and should be nearly {expected}"));
            }
        }
        Ok(())
    })
}

impl Problem {
    /// Creates a launch with a one-dimensional grid.
    pub fn line(kernel: &'static str, blocks: u32, threads: u32, arguments: Vec<Argument>, judge: Judge) -> Self {
        Self { kernel, grid: [blocks, 1, 1], block: [threads, 1, 1], arguments, judge, poison: false }
    }

    /// Runs the problem once. `text` gives the kernel's dynamic shared memory. An error says what is wrong.
    pub fn run(&self, text: &str, module: &PtxModule, options: &LaunchOptions) -> Result<(), String> {
        let options = &LaunchOptions { poison: self.poison || options.poison, ..options.clone() };
        let mut device = EmulatedDevice::new();
        let (mut arguments, mut outputs) = (Vec::new(), Vec::new());
        for argument in &self.arguments {
            let (memory, form) = match argument {
                Argument::Value(value) => {
                    arguments.push(value.clone());
                    continue;
                }
                Argument::Memory(memory, form) => (memory, form),
            };
            let (address, size) = match memory {
                Memory::Input(bytes) => (device.alloc_from("input", bytes), None),
                Memory::Updated(bytes) => (device.alloc_from("updated", bytes), Some(bytes.len())),
                Memory::Output(size) => (device.alloc_named("output", *size), Some(*size)),
            };
            outputs.extend(size.map(|size| (address, size)));
            arguments.extend(form.arguments(address));
        }
        device
            .launch_with(
                options,
                module,
                self.kernel,
                self.grid,
                self.block,
                shared_bytes(text, self.kernel),
                &arguments,
            )
            .map_err(|fault| format!("{:?}: {fault}", fault.kind))?;
        let outputs: Result<Vec<_>, _> = outputs.iter().map(|&(address, size)| device.read(address, size)).collect();
        (self.judge)(&outputs.map_err(|error| error.to_string())?)
    }

    /// Runs the problem in several orders, with all checks.
    pub fn run_in_orders(&self, text: &str, module: &PtxModule) -> Result<(), String> {
        let options = |seed| LaunchOptions { seed, ..LaunchOptions::default() };
        ORDERS.into_iter().try_for_each(|seed| {
            self.run(text, module, &options(seed)).map_err(|error| format!("{}, order {seed}: {error}", self.kernel))
        })
    }
}

/// Asserts that all problems give the correct results.
pub fn check(text: &str, problems: Vec<Problem>) {
    let module = PtxModule::parse(text).unwrap();
    for problem in problems {
        problem.run_in_orders(text, &module).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The bytes of dynamic shared memory that a comment in the text declares for a kernel.
fn shared_bytes(text: &str, kernel: &str) -> usize {
    let begins = format!("// {kernel}: ");
    let line = text.lines().find_map(|line| line.strip_prefix(&begins));
    line.map_or(0, |line| line.split(' ').next().unwrap().parse().unwrap())
}

impl Form {
    fn arguments(&self, address: u64) -> Vec<Arg> {
        match self {
            Form::Pointer => vec![Arg::Ptr(address)],
            Form::Map(map) => {
                let map = TensorMap { base: address, ..map.clone() };
                vec![Arg::Bytes(map.encode().unwrap().to_vec())]
            }
            Form::Array(element, shape) => {
                let number = |number: u64| Arg::Bytes(number.bytes());
                let strides = (1..=shape.len()).map(|axis| shape[axis..].iter().product::<u64>() * element);
                let head = [0, 0, shape.iter().product(), *element, address];
                head.into_iter().chain(shape.iter().copied()).chain(strides).map(number).collect()
            }
            &Form::Tensor([rows, columns], [tile_rows, tile_columns], swizzle) => {
                let map = TensorMap {
                    base: address,
                    element_bytes: 2,
                    dimensions: vec![columns, rows],
                    strides: vec![columns * 2],
                    tile: vec![tile_columns, tile_rows],
                    swizzle,
                };
                let shape = [rows, columns].map(|size| Arg::Bytes((size as u32).bytes()));
                let strides = [columns, 1].map(|stride| Arg::Bytes(stride.bytes()));
                [Arg::Bytes(map.encode().unwrap().to_vec())].into_iter().chain(shape).chain(strides).collect()
            }
        }
    }
}

/// Small pseudo-random numbers with a long period.
pub fn numbers(count: usize, range: i32) -> Vec<i32> {
    let mut state = 12345u32.wrapping_add(count as u32);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as i32 % range
    };
    (0..count).map(|_| next()).collect()
}
