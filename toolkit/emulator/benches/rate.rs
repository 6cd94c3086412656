//! Measures how many warp instructions a second one core executes, with all checks and with none: the best of five runs.

use emulator::{Arg, Device, Fault, LaunchOptions, Module, Report};
use std::time::Instant;

type Outcome = Result<(Report, f64), Box<Fault>>;

/// Seconds this thread has had a core so far, where the system tells (Linux); else seconds of the clock.
fn core_seconds(start: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| start.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

/// Takes the time of a launch.
fn timed(launch: impl FnOnce() -> Result<Report, Box<Fault>>) -> Outcome {
    let start = Instant::now();
    let before = core_seconds(start);
    let report = launch()?;
    Ok((report, core_seconds(start) - before))
}

fn softmax(module: &Module, options: &LaunchOptions) -> Outcome {
    let (rows, cols) = (256u32, 4096u32);
    let mut device = Device::new();
    let x: Vec<u8> = (0..rows * cols).flat_map(|i| ((i % 97) as f32).to_le_bytes()).collect();
    let (x, out) = (device.alloc_from("x", &x), device.alloc_named("out", (rows * cols * 4) as usize));
    let args = [Arg::Ptr(x), Arg::Ptr(out), Arg::U32(rows), Arg::U32(cols)];
    timed(|| device.launch_with(options, module, "softmax", [rows / 4, 1, 1], [128, 1, 1], 0, &args))
}

fn saxpy(module: &Module, options: &LaunchOptions) -> Outcome {
    let n = 1u32 << 22;
    let mut device = Device::new();
    let x: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let (x, y) = (device.alloc_from("x", &x), device.alloc_from("y", &x));
    let args = [Arg::F32(1.5), Arg::Ptr(x), Arg::Ptr(y), Arg::U32(n / 4)];
    timed(|| device.launch_with(options, module, "saxpy4", [n / 1024, 1, 1], [256, 1, 1], 0, &args))
}

fn gemm(module: &Module, options: &LaunchOptions) -> Outcome {
    let (m, n, k) = (256u32, 256u32, 512u32);
    let mut device = Device::new();
    let a = vec![0x3c; (m * k * 2) as usize];
    let (a, b, c) =
        (device.alloc_from("a", &a), device.alloc_from("b", &a), device.alloc_named("c", (m * n * 4) as usize));
    let args = [Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c), Arg::U32(m), Arg::U32(n), Arg::U32(k)];
    timed(|| device.launch_with(options, module, "gemm_f16", [m / 64 * n / 64, 1, 1], [128, 1, 1], 20_480, &args))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let module = Module::parse(include_str!("../tests/ptx/kernels.ptx"))?;
    let none = LaunchOptions {
        check_initialised: false,
        check_races: false,
        check_global_races: false,
        ..LaunchOptions::default()
    };
    type Run = fn(&Module, &LaunchOptions) -> Outcome;
    let no_global = LaunchOptions { check_global_races: false, ..LaunchOptions::default() };
    let runs: [(&str, Run); 3] = [("softmax", softmax), ("saxpy4", saxpy), ("gemm_f16", gemm)];
    for (checks, options) in
        [("all checks", LaunchOptions::default()), ("no global races", no_global), ("no checks", none)]
    {
        for (name, run) in runs {
            let (report, mut seconds) = run(&module, &options)?;
            for _ in 1..5 {
                seconds = seconds.min(run(&module, &options)?.1);
            }
            let rate = report.total.instructions as f64 / seconds / 1e6;
            println!("{name:9} {checks:15} {:9} warp instructions {rate:6.1} M/s", report.total.instructions);
        }
    }
    Ok(())
}
