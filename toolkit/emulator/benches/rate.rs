//! How many warp instructions a second one core executes, with all checks and with fewer, and how many all cores. An item is a
//! warp instruction.
//!
//!     cargo bench -p quire-emulator --bench rate

use divan::Bencher;
use divan::counter::ItemsCount;
use emulator::{Arg, CostReport, EmulatedDevice, LaunchOptions, PtxModule, Swizzle, TensorMap};

/// Scalar kernels, and one by `mma.sync`.
const KERNELS: &str = include_str!("../tests/ptx/kernels.ptx");
/// Kernels by `wgmma`.
const PRODUCTS: &str = include_str!("../tests/foreign/products.ptx");

/// What is checked while a kernel runs.
#[derive(Clone, Copy, Debug)]
enum Checks {
    All,
    NoGlobalRaces,
    None,
    /// All, on all cores of the machine.
    AllOnCores,
}

const CHECKS: [Checks; 4] = [Checks::All, Checks::NoGlobalRaces, Checks::None, Checks::AllOnCores];

impl Checks {
    fn options(self) -> LaunchOptions {
        let all = LaunchOptions { cores: 1, ..LaunchOptions::default() };
        match self {
            Checks::All => all,
            Checks::AllOnCores => LaunchOptions::default(),
            Checks::NoGlobalRaces => LaunchOptions { check_global_races: false, ..all },
            Checks::None => {
                LaunchOptions { check_initialised: false, check_races: false, check_global_races: false, ..all }
            }
        }
    }
}

/// A kernel with its arguments in a device's memory, ready to be launched.
struct Launch {
    device: EmulatedDevice,
    kernel: &'static str,
    grid: u32,
    threads: u32,
    shared_bytes: usize,
    arguments: Vec<Arg>,
}

impl Launch {
    fn run(&mut self, module: &PtxModule, options: &LaunchOptions) -> CostReport {
        let (grid, block) = ([self.grid, 1, 1], [self.threads, 1, 1]);
        let launch =
            self.device.launch_with(options, module, self.kernel, grid, block, self.shared_bytes, &self.arguments);
        launch.unwrap_or_else(|fault| panic!("{fault}"))
    }
}

fn main() {
    divan::main();
}

/// Softmax of 256 rows of 4,096, by warp shuffles.
#[divan::bench(args = CHECKS, sample_count = 5, sample_size = 1)]
fn softmax(bencher: Bencher<'_, '_>, checks: Checks) {
    let (rows, columns) = (256u32, 4096u32);
    let numbers: Vec<u8> = (0..rows * columns).flat_map(|i| ((i % 97) as f32).to_le_bytes()).collect();
    measure(bencher, KERNELS, checks, || {
        let mut device = EmulatedDevice::new();
        let (x, out) = (device.alloc_from("x", &numbers), device.alloc_named("out", numbers.len()));
        let arguments = vec![Arg::Ptr(x), Arg::Ptr(out), Arg::U32(rows), Arg::U32(columns)];
        Launch { device, kernel: "softmax", grid: rows / 4, threads: 128, shared_bytes: 0, arguments }
    });
}

/// `y += a * x`, four elements a thread.
#[divan::bench(args = CHECKS, sample_count = 5, sample_size = 1)]
fn saxpy(bencher: Bencher<'_, '_>, checks: Checks) {
    let n = 1u32 << 22;
    let numbers: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    measure(bencher, KERNELS, checks, || {
        let mut device = EmulatedDevice::new();
        let (x, y) = (device.alloc_from("x", &numbers), device.alloc_from("y", &numbers));
        let arguments = vec![Arg::F32(1.5), Arg::Ptr(x), Arg::Ptr(y), Arg::U32(n / 4)];
        Launch { device, kernel: "saxpy4", grid: n / 1024, threads: 256, shared_bytes: 0, arguments }
    });
}

/// A product of f16 matrices, by `mma.sync` and `cp.async`.
#[divan::bench(args = CHECKS, sample_count = 5, sample_size = 1)]
fn gemm(bencher: Bencher<'_, '_>, checks: Checks) {
    measure_gemm(bencher, checks, [256, 256, 512]);
}

/// One of sixteen times the work: what several cores give when a launch takes longer.
#[divan::bench(args = [Checks::All, Checks::AllOnCores], sample_count = 5, sample_size = 1)]
fn gemm_longer(bencher: Bencher<'_, '_>, checks: Checks) {
    measure_gemm(bencher, checks, [1024, 1024, 512]);
}

fn measure_gemm(bencher: Bencher<'_, '_>, checks: Checks, [m, n, k]: [u32; 3]) {
    let numbers = |rows: u32| halves((rows * k) as usize);
    measure(bencher, KERNELS, checks, || {
        let mut device = EmulatedDevice::new();
        let (a, b) = (device.alloc_from("a", &numbers(m)), device.alloc_from("b", &numbers(n)));
        let c = device.alloc_named("c", (m * n * 4) as usize);
        let arguments = vec![Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c), Arg::U32(m), Arg::U32(n), Arg::U32(k)];
        Launch { device, kernel: "gemm_f16", grid: m / 64 * n / 64, threads: 128, shared_bytes: 20_480, arguments }
    });
}

/// A product of f16 matrices by `wgmma`, in each of eight blocks 256 of 64 rows and 256 columns.
#[divan::bench(args = CHECKS, sample_count = 5, sample_size = 1)]
fn wgmma(bencher: Bencher<'_, '_>, checks: Checks) {
    let (rows, columns, steps) = (64u64, 256u64, 256u32);
    let numbers = halves((columns * 64) as usize);
    let bytes = |words: &[u32]| Arg::Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect());
    measure(bencher, PRODUCTS, checks, || {
        let mut device = EmulatedDevice::new();
        let mut map = |rows: u64| {
            let map = TensorMap {
                base: device.alloc_from("factor", &numbers),
                element_bytes: 2,
                dimensions: vec![64, rows],
                strides: vec![128],
                tile: vec![64, rows as u32],
                swizzle: Swizzle::Bytes128,
            };
            Arg::Bytes(map.encode().unwrap_or_else(|error| panic!("{error}")).to_vec())
        };
        let (a, b) = (map(rows), map(columns));
        // One box of each factor; then the bytes of both, and the steps.
        let (of_a, of_b) = ((rows * 128) as u32, (columns * 128) as u32);
        let boxes = bytes(&[1, 64, of_a, 0, 1, 64, of_b, of_a, of_a + of_b, steps]);
        let descriptor = |at: u32| u64::from(at) >> 4 | 1 << 16 | 64 << 32 | 1 << 62;
        let pairs = (0..steps).map(|step| 32 * (step % 4)).flat_map(|at| [descriptor(at), descriptor(of_a + at)]);
        let steps = device.alloc_from("steps", &pairs.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
        let sums = device.alloc_named("sums", (8 * rows * columns * 4) as usize);
        let arguments = vec![a, b, boxes, Arg::Ptr(steps), Arg::Bytes(vec![0; 8]), Arg::Ptr(sums)];
        Launch { device, kernel: "f32_f16_f16_n256_rr", grid: 8, threads: 128, shared_bytes: 40_960, arguments }
    });
}

/// The bytes of so many halves of different signs and sizes.
fn halves(count: usize) -> Vec<u8> {
    let bits = |i: u32| (i.wrapping_mul(2_654_435_761) >> 16) as u16;
    (0..count as u32).flat_map(|i| (bits(i) & 0x8fff | 0x3000).to_le_bytes()).collect()
}

/// Measures launches of a kernel of a text, each on a new device.
fn measure(bencher: Bencher<'_, '_>, text: &str, checks: Checks, prepare: impl Fn() -> Launch) {
    let module = PtxModule::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let options = checks.options();
    let instructions = prepare().run(&module, &options).total.instructions;
    let bencher = bencher.counter(ItemsCount::new(instructions)).with_inputs(prepare);
    bencher.bench_local_refs(|launch| launch.run(&module, &options));
}
