//! Every barrier, wait, fence and commit of every kernel taken away, one at a time: each is noticed, by a fault or a wrong result
//! in some order of warps and blocks, or stands in the reviewed list with the reason why nothing notices it.
//!
//! `cargo test` takes a fixed sample of the places. All of them, in some minutes:
//!
//!     cargo test --test sweep -- --all
//!
//! With the name of a kernel behind it, or a part of one, those of such kernels.

mod problems;
mod reviewed;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use emulator::{ORDERING, PtxParts, PtxPlace};
use launch::Driver;
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
/// One place of so many is in the sample.
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
        // The same command runs test binaries with a harness: their options and filters say nothing here.
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

/// Sweeps all targets, and says of each what was found, before it fails: all places of kernels whose names contain `all_of`, or a
/// sample of everything.
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
            "{}: {} of {} places taken away, {} noticed, {} reviewed, {} new",
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
        _ if taken == 0 => Err("no kernel of this name has anything to take away".into()),
        (0, None) => Ok(()),
        (0, Some((entry, _))) => Err(format!("nothing goes unnoticed of a reviewed entry: {entry:?}").into()),
        _ => Err(format!("nothing notices that {new} places are gone, and nobody has said why").into()),
    }
}

impl Target {
    /// The kernels that each problem launches.
    fn launched(self) -> Result<Vec<BTreeSet<&'static str>>, Box<dyn Error>> {
        let driver = Driver::emulator()?;
        let launched = |case: Case| {
            let mut gpu = Gpu::new(driver, self.capability, self.ptx)?;
            gpu.rehearse(|gpu| ((case.prepare)(gpu)?.launch)(gpu))?;
            Ok(gpu.launched().keys().copied().collect())
        };
        problems::all(self.name).into_iter().map(launched).collect()
    }

    /// Those of the places without which all problems come out right. `launched`: what each of them launches.
    fn unnoticed<'a>(
        self,
        parts: &PtxParts<'_>,
        launched: &[BTreeSet<&str>],
        chosen: &[&'a PtxPlace<'a>],
    ) -> Result<Vec<&'a PtxPlace<'a>>, Box<dyn Error>> {
        let whole: Vec<OnceLock<bool>> = launched.iter().map(|_| OnceLock::new()).collect();
        let (next, unnoticed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<(), String> {
            // Cases are made in each thread, since what they hold is not shared.
            let cases = problems::all(self.name);
            while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < chosen.len()) {
                let mut is_noticed = false;
                for (i, case) in cases.iter().enumerate().filter(|(i, _)| launched[*i].contains(chosen[at].kernel)) {
                    // What is wrong with all of its places notices nothing.
                    if !whole[i].get_or_init(|| self.is_right(case, parts.excerpt(&launched[i], None))) {
                        return Err(format!("{} is wrong with all of its places: {}", case.kernel, case.shape));
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

    /// Whether the case has no fault and a right result with this PTX.
    fn is_right(self, case: &Case, ptx: String) -> bool {
        let measured =
            Driver::emulator().and_then(|driver| measure(case, &mut Gpu::new(driver, self.capability, ptx)?));
        measured.is_ok_and(|measured| measured.error <= 1.0)
    }
}
