//! Removes every barrier, wait, fence and commit of every kernel, one at a time. Each removal must cause a fault or a
//! wrong result in some order of warps and blocks. Otherwise the reviewed list must give the reason why it goes
//! unnoticed.
//!
//! `cargo test` removes a fixed sample. This command removes all of them, in a few minutes:
//!
//!     cargo test --test sweep -- --all
//!
//! The name of a kernel after it, or a part of a name, selects these kernels.

mod problems;
mod reviewed;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use emulator::{ORDERING, PtxParts, PtxPlace};
use launch::{Driver, Ptx};
use workbench::{Case, Gpu, measure};

use reviewed::{REVIEWED, Reviewed};

/// The PTX of a target.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    capability: (u32, u32),
    ptx: &'static str,
}

const TARGETS: [Target; 2] = [
    Target { name: "sm_80", capability: (8, 0), ptx: include_str!("../../prebuilt/sm_80.ptx") },
    Target { name: "sm_90a", capability: (9, 0), ptx: include_str!("../../prebuilt/sm_90a.ptx") },
];
/// The sample has one place in this many.
const SAMPLE: usize = 53;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let all_of = match arguments[..] {
        ["--all"] => Some(""),
        ["--all", name] => Some(name),
        // `cargo test` passes the harness's options and filters to this binary too, which ignores them.
        _ => None,
    };
    match run(all_of) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sweeps all targets, and prints the findings of each before it fails. Takes all places in kernels whose names contain
/// `all_of`, or a sample of all places.
fn run(all_of: Option<&str>) -> Result<(), Box<dyn Error>> {
    let (mut taken, mut new, mut is_used) = (0, 0, [false; REVIEWED.len()]);
    for target in TARGETS {
        let (parts, launched) = (PtxParts::of(target.ptx, "./kernels/src/"), target.launched()?);
        let kernels: BTreeSet<&str> = launched.iter().flatten().copied().collect();
        let sites: Vec<PtxPlace<'_>> = kernels.into_iter().flat_map(|kernel| parts.places(kernel, &ORDERING)).collect();
        let chosen: Vec<&PtxPlace<'_>> = match all_of {
            Some(name) => sites.iter().filter(|site| site.kernel.contains(name)).collect(),
            None => sites.iter().step_by(SAMPLE).collect(),
        };
        let unnoticed = target.unnoticed(&parts, &launched, &chosen)?;
        let rest = Reviewed::rest(&unnoticed);
        println!(
            "{}: {} of {} places removed, {} noticed, {} reviewed, {} new",
            target.name,
            chosen.len(),
            sites.len(),
            chosen.len() - unnoticed.len(),
            unnoticed.len() - rest.len(),
            rest.len()
        );
        for (entry, is_used) in REVIEWED.iter().zip(&mut is_used) {
            let count = unnoticed.iter().filter(|site| entry.covers(site)).count();
            *is_used |= count > 0;
            if all_of.is_some() && count > 0 {
                println!("  {count} x {} of {} near {}: {}", entry.opcode, entry.family, entry.file, entry.why);
            }
        }
        let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
        rest.iter().for_each(|site| *kinds.entry((site.kernel, site.instruction, &site.source)).or_default() += 1);
        for ((kernel, instruction, source), count) in kinds {
            println!("  new: {count} x {instruction} of {kernel} near {source}");
        }
        taken += chosen.len();
        new += rest.len();
    }
    let stale = REVIEWED.iter().zip(is_used).find(|(_, is_used)| all_of == Some("") && !is_used);
    match (new, stale) {
        _ if taken == 0 => Err("no kernel with this name has anything to remove".into()),
        (0, None) => Ok(()),
        (0, Some((entry, _))) => Err(format!("a reviewed entry covers no unnoticed place: {entry:?}").into()),
        _ => Err(format!("{new} places can be removed unnoticed and are not in the reviewed list").into()),
    }
}

impl Target {
    /// Returns the kernels that each problem launches.
    fn launched(self) -> Result<Vec<BTreeSet<&'static str>>, Box<dyn Error>> {
        let (driver, ptx) = (Driver::emulator()?, Arc::new(Ptx::new(self.ptx)?));
        let launched = |case: Case| {
            let mut gpu = Gpu::new(driver, self.capability, Arc::clone(&ptx))?;
            gpu.rehearse(|gpu| ((case.prepare)(gpu)?.launch)(gpu))?;
            Ok(gpu.launched().keys().copied().collect())
        };
        problems::all(self.name).into_iter().map(launched).collect()
    }

    /// Returns the places whose removal leaves all problems right. `launched` has the kernels that each problem
    /// launches.
    fn unnoticed<'a>(
        self,
        parts: &PtxParts<'_>,
        launched: &[BTreeSet<&str>],
        chosen: &[&'a PtxPlace<'a>],
    ) -> Result<Vec<&'a PtxPlace<'a>>, Box<dyn Error>> {
        let whole: Vec<OnceLock<bool>> = launched.iter().map(|_| OnceLock::new()).collect();
        let (next, unnoticed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<(), String> {
            // Each thread makes its own cases, since cases cannot be shared.
            let cases = problems::all(self.name);
            while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < chosen.len()) {
                let mut is_noticed = false;
                for (i, case) in cases.iter().enumerate().filter(|(i, _)| launched[*i].contains(chosen[at].kernel)) {
                    // A case that fails with nothing removed cannot notice a removal.
                    if !whole[i].get_or_init(|| self.is_right(case, parts.excerpt(&launched[i], None))) {
                        return Err(format!("{} is wrong with nothing removed: {}", case.kernel, case.shape));
                    }
                    is_noticed = !self.is_right(case, parts.excerpt(&launched[i], Some(chosen[at])));
                    if is_noticed {
                        break;
                    }
                }
                if !is_noticed {
                    unnoticed.lock().map_err(|error| error.to_string())?.push(at);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..thread::available_parallelism().map_or(1, usize::from)).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("a thread panicked".to_owned())))
        })?;
        let mut unnoticed = unnoticed.into_inner().map_err(|error| error.to_string())?;
        unnoticed.sort_unstable();
        Ok(unnoticed.into_iter().map(|at| chosen[at]).collect())
    }

    /// Returns whether the case has no fault and a right result with this PTX.
    fn is_right(self, case: &Case, ptx: String) -> bool {
        let gpu = || Gpu::new(Driver::emulator()?, self.capability, Arc::new(Ptx::new(ptx)?));
        gpu().and_then(|mut gpu| measure(case, &mut gpu)).is_ok_and(|measured| measured.error <= 1.0)
    }
}
