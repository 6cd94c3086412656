//! Every kernel on problems of each kind: compared with a plain reference, then measured, in a table.
//!
//! `cargo test -p kernels --release` runs it in the emulator, or with `QUIRE_TEST_DEVICE=cuda` on a GPU. `--test
//! microbench -- --json FILE` also writes the figures to a file. It fails if a result is wrong, if no case launches a
//! kernel of the registry, or if a multiprocessor holds fewer warps of a kernel than its budget.

mod occupancy;
mod table;

use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use launch::{Driver, Ptx};
use serde::Serialize;
use workbench::{Gpu, LinkBytes, Measured, Scale, cases, measure};

/// A kind of GPU with its PTX.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    /// Compute capability.
    capability: (u32, u32),
    shipped: &'static str,
    intrinsics: &'static str,
}

const TARGETS: [Target; 2] = [
    Target {
        name: "sm_80",
        capability: (8, 0),
        shipped: include_str!("../../prebuilt/sm_80.ptx"),
        intrinsics: intrinsics::SM_80,
    },
    Target {
        name: "sm_90a",
        capability: (9, 0),
        shipped: include_str!("../../prebuilt/sm_90a.ptx"),
        intrinsics: intrinsics::SM_90A,
    },
];

/// Measurements with the PTX of one target.
#[derive(Serialize)]
struct Table {
    target: &'static str,
    device: String,
    cases: Vec<Measured>,
    /// All-reduces over the links between emulated devices. Empty on a GPU.
    links: Vec<LinkBytes>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // `cargo test` passes the harness's arguments to this binary too. Options have no effect, and a filter skips the
    // whole run.
    let json = match arguments[..] {
        ["--json", file] => Some(file),
        ["--json", ..] => {
            eprintln!("error: --json takes only the name of a file");
            return ExitCode::FAILURE;
        }
        _ if arguments.contains(&"--list") => return ExitCode::SUCCESS,
        _ => match arguments.iter().find(|argument| !argument.starts_with('-')) {
            Some(filter) => {
                println!(
                    "*** SKIPPED: the microbenchmarks run all or nothing, and the filter {filter:?} is given. ***"
                );
                return ExitCode::SUCCESS;
            }
            None => None,
        },
    };
    match run(json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(json: Option<&str>) -> Result<(), Box<dyn Error>> {
    let driver = Driver::under_test()?;
    // On a GPU the targets run one after the other, which keeps the measured times undisturbed.
    let tables: Vec<_> = if driver.is_emulator() {
        std::thread::scope(|scope| {
            let all = TARGETS.map(|target| scope.spawn(move || table_of(driver, target).map_err(|e| e.to_string())));
            all.into_iter().map(|thread| thread.join().unwrap_or(Err("a thread panicked".to_owned()))).collect()
        })
    } else {
        TARGETS.into_iter().map(|target| table_of(driver, target).map_err(|e| e.to_string())).collect()
    };
    let tables: Vec<Table> = tables.into_iter().collect::<Result<_, String>>()?;
    tables.iter().for_each(|table| println!("{table}"));
    if let Some(file) = json {
        std::fs::write(file, serde_json::to_string_pretty(&tables)?).map_err(|error| format!("{file}: {error}"))?;
    }
    match tables.iter().flat_map(|table| &table.cases).find(|case| case.error > 1.0) {
        Some(Measured { kernel, shape, error, .. }) => {
            Err(format!("{kernel} is wrong for {shape}: the error is {error:.1} times the allowed one").into())
        }
        None => Ok(()),
    }
}

/// Measures all cases, each on a device whose memory is otherwise empty.
fn table_of(driver: &'static Driver, target: Target) -> Result<Table, Box<dyn Error>> {
    let scale = if driver.is_emulator() { Scale::Small } else { Scale::Full };
    let [intrinsics, shipped] = [target.intrinsics, target.shipped].map(|text| Ptx::new(text).map(Arc::new));
    let (mut gpu, shipped) = (Gpu::new(driver, target.capability, intrinsics?)?, shipped?);
    let device = gpu.context().name().to_owned();
    let mut measured = vec![measure(&cases::read_stream(scale), &mut gpu)?];
    let (mut launched, mut occupancy) = (BTreeSet::new(), occupancy::FewestWarps::default());
    for case in cases::all(scale, target.name) {
        let mut gpu = Gpu::new(driver, target.capability, Arc::clone(&shipped))?;
        measured.push(measure(&case, &mut gpu)?);
        launched.extend(gpu.launched().keys().copied());
        occupancy.note(target.name, gpu.launched());
    }
    // The budgets do not apply on a GPU, whose problems have different launches.
    if scale == Scale::Small
        && let Some(wrong) = occupancy.wrong(target.name).first()
    {
        return Err(wrong.clone().into());
    }
    let registry = kernels::registry::shipped().filter(|kernel| kernel.is_for(target.name));
    let missing: Vec<_> = registry.filter(|kernel| !launched.contains(kernel.name)).map(|kernel| kernel.name).collect();
    match missing.first() {
        Some(kernel) => Err(format!("no case launches {kernel} and {} other kernels", missing.len() - 1).into()),
        None => {
            let links = if driver.is_emulator() { links(target)? } else { Vec::new() };
            Ok(Table { target: target.name, device, cases: measured, links })
        }
    }
}

/// All-reduces of a small and a larger size, as the engine makes them.
fn links(target: Target) -> Result<Vec<LinkBytes>, Box<dyn Error>> {
    let sizes = [2, 4, 8].into_iter().flat_map(|ranks| [(ranks, 16 << 10), (ranks, 1 << 20)]);
    let count = |(ranks, bytes)| {
        let shots = kernels::communicator::shots(ranks as u32, bytes as u64);
        Ok(LinkBytes::count(target.shipped, ranks, shots, bytes)?)
    };
    sizes.map(count).collect()
}
