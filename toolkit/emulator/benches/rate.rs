//! How many warp instructions a second one core executes, with all checks and with fewer, and how many all cores. An item is a
//! warp instruction.
//!
//!     cargo bench -p quire-emulator --bench rate

use divan::Bencher;
use divan::counter::ItemsCount;
use emulator::{Arg, CostReport, EmulatedDevice, LaunchOptions, PtxModule};

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
    measure(bencher, checks, || {
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
    measure(bencher, checks, || {
        let mut device = EmulatedDevice::new();
        let (x, y) = (device.alloc_from("x", &numbers), device.alloc_from("y", &numbers));
        let arguments = vec![Arg::F32(1.5), Arg::Ptr(x), Arg::Ptr(y), Arg::U32(n / 4)];
        Launch { device, kernel: "saxpy4", grid: n / 1024, threads: 256, shared_bytes: 0, arguments }
    });
}

/// A product of f16 matrices, by `mma.sync` and `cp.async`.
#[divan::bench(args = CHECKS, sample_count = 5, sample_size = 1)]
fn gemm(bencher: Bencher<'_, '_>, checks: Checks) {
    let (m, n, k) = (256u32, 256u32, 512u32);
    let numbers = vec![0x3c; (m * k * 2) as usize];
    measure(bencher, checks, || {
        let mut device = EmulatedDevice::new();
        let (a, b) = (device.alloc_from("a", &numbers), device.alloc_from("b", &numbers));
        let c = device.alloc_named("c", (m * n * 4) as usize);
        let arguments = vec![Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c), Arg::U32(m), Arg::U32(n), Arg::U32(k)];
        Launch { device, kernel: "gemm_f16", grid: m / 64 * n / 64, threads: 128, shared_bytes: 20_480, arguments }
    });
}

/// Measures launches, each on a new device.
fn measure(bencher: Bencher<'_, '_>, checks: Checks, prepare: impl Fn() -> Launch) {
    let module = PtxModule::parse(include_str!("../tests/ptx/kernels.ptx")).unwrap_or_else(|error| panic!("{error}"));
    let options = checks.options();
    let instructions = prepare().run(&module, &options).total.instructions;
    let bencher = bencher.counter(ItemsCount::new(instructions)).with_inputs(prepare);
    bencher.bench_local_refs(|launch| launch.run(&module, &options));
}
