//! Every barrier, wait, fence and commit of every kernel taken away, one at a time: each is noticed, by a fault or a wrong result
//! in some order of warps and blocks, or stands in the reviewed list with the reason why nothing notices it.
//!
//! `cargo test` takes a fixed sample of the places. All of them, in some minutes:
//!
//!     cargo test -p kernels --release --test sweep -- --all

mod reviewed;
mod sites;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use launch::Driver;
use workbench::{Case, Gpu, Scale, cases, measure};

use reviewed::{Place, REVIEWED};
use sites::{Site, without};

const TARGETS: [(&str, (u32, u32), &str); 2] = [
    ("sm_80", (8, 0), include_str!("../../prebuilt/sm_80.ptx")),
    ("sm_90a", (9, 0), include_str!("../../prebuilt/sm_90a.ptx")),
];
/// One place of so many is in the sample.
const SAMPLE: usize = 53;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    // The same command runs test binaries with a harness: their options and filters say nothing here.
    let all = arguments.iter().any(|argument| argument == "--all");
    match TARGETS.iter().try_for_each(|target| sweep(*target, if all { 1 } else { SAMPLE })) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes away one of every `step` places, and holds those that nobody notices against the list.
fn sweep((name, capability, ptx): (&str, (u32, u32), &str), step: usize) -> Result<(), Box<dyn Error>> {
    let launched = kernels_of_cases(name, capability, ptx)?;
    let kernels: BTreeSet<&str> = launched.iter().flatten().copied().collect();
    let sites: Vec<Site> = kernels.iter().flat_map(|kernel| sites::of(ptx, kernel)).collect();
    let chosen: Vec<&Site> = sites.iter().step_by(step).collect();
    let (next, unnoticed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<(), String> {
        // Cases are made in each thread, since what they hold is not shared.
        let cases = cases::all(Scale::Small, name);
        while let Some(site) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut with_it = cases.iter().zip(&launched).filter(|(_, kernels)| kernels.contains(site.kernel));
            let is_noticed = with_it.any(|(case, kernels)| is_wrong(case, capability, without(ptx, kernels, site)));
            if !is_noticed {
                unnoticed.lock().map_err(|error| error.to_string())?.push(*site);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..thread::available_parallelism().map_or(1, usize::from)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("a thread panicked".to_owned())))
    })?;
    let unnoticed = unnoticed.into_inner().map_err(|error| error.to_string())?;
    for site in &unnoticed { println!("{} {} {} {}", site.kernel, site.instruction, site.source, 0); }
    let unnoticed: Vec<Place> = unnoticed.into_iter().map(Place::of).collect();
    let reviewed = |place: &Place| REVIEWED.iter().any(|(reviewed, _)| reviewed == place);
    println!(
        "{name}: {} of {} places taken away, {} of them noticed",
        chosen.len(),
        sites.len(),
        chosen.len() - unnoticed.len()
    );
    let mut new: BTreeMap<&Place, usize> = BTreeMap::new();
    unnoticed.iter().filter(|place| !reviewed(place)).for_each(|place| *new.entry(place).or_default() += 1);
    match new.is_empty() {
        true => Ok(()),
        false => Err(format!("{name}: nothing notices that these are gone: {new:#?}").into()),
    }
}

/// The kernels that each case launches.
fn kernels_of_cases(
    name: &str,
    capability: (u32, u32),
    ptx: &str,
) -> Result<Vec<BTreeSet<&'static str>>, Box<dyn Error>> {
    let driver = Driver::emulator()?;
    let launched = |case: Case| {
        let mut gpu = Gpu::new(driver, capability, ptx)?;
        let prepared = (case.prepare)(&mut gpu)?;
        gpu.rehearse(|gpu| (prepared.launch)(gpu))?;
        Ok(gpu.launched().keys().copied().collect())
    };
    cases::all(Scale::Small, name).into_iter().map(launched).collect()
}

/// Whether the case is at fault or wrong with this PTX.
fn is_wrong(case: &Case, capability: (u32, u32), ptx: String) -> bool {
    let measured = Driver::emulator().and_then(|driver| measure(case, &mut Gpu::new(driver, capability, ptx)?));
    measured.map_or(true, |measured| measured.error > 1.0)
}
