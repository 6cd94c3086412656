//! Code that the lessons share on the host: opening a device, launching kernels, and reporting their cost.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

use cuda_std::launch::{KernelCall, LaunchShape};
use emulator::CostReport;
use launch::{Driver, Event, Ptx};
use workbench::Gpu;

use crate::listing::listing;

/// The PTX of all lessons' kernels. `cargo run -p quire-cuda-builder` compiles it from their sources.
pub const PTX: &str = include_str!("../prebuilt/sm_80.ptx");

/// The result of a lesson.
pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// The error that a lesson's `main` returns. Rust prints it in `Debug` format, which here is the error's `Display`
/// text.
pub struct LessonFailed(Box<dyn std::error::Error>);

impl fmt::Debug for LessonFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The help text of every lesson.
const USAGE: &str =
    "usage: cargo run --example LESSON -- [--device emulator|cuda] [--ptx] [--without barrier|wait|fence]

  --device emulator   run on the emulator, which counts what kernels do (the default)
  --device cuda       run on the machine's first NVIDIA GPU, which reports only times
  --ptx               print the PTX of each kernel next to the Rust lines that it comes from
  --without WHAT      exercises only: remove this instruction from its kernel";

/// A running lesson: a device to run kernels on, and the text to print.
pub struct Lesson {
    /// The device, which also owns the buffers.
    pub gpu: Gpu,
    /// The exercise whose instruction is to be removed from its kernel.
    pub without: Option<String>,
    ptx: String,
    lists: bool,
    listed: BTreeSet<&'static str>,
    text: String,
}

impl Lesson {
    /// Creates a lesson on the driver's first device.
    ///
    /// # Errors
    /// Fails if there is no device.
    pub fn new(driver: &'static Driver) -> Result<Lesson> {
        let gpu = Gpu::new(driver, (8, 0), Arc::new(Ptx::new(PTX)?))?;
        let listed = BTreeSet::new();
        Ok(Lesson { gpu, without: None, ptx: PTX.to_owned(), lists: false, listed, text: String::new() })
    }

    /// Creates a lesson from the command line. Returns `None` if the user asked for help.
    fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Option<Lesson>> {
        let (mut device, mut lists, mut without) = ("emulator".to_owned(), false, None);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--device" => device = arguments.next().ok_or(USAGE)?,
                "--without" => without = Some(arguments.next().ok_or(USAGE)?),
                "--ptx" => lists = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(Some(Lesson { lists, without, ..Lesson::new(Driver::named(&device)?)? }))
    }

    /// Makes the lesson print the PTX of its kernels as well.
    pub fn with_listing(self) -> Lesson {
        Lesson { lists: true, ..self }
    }

    /// Opens the device again with other PTX. All buffers are lost.
    ///
    /// # Errors
    /// Fails if the device cannot be opened.
    pub fn load(&mut self, ptx: &str) -> Result<()> {
        self.gpu = Gpu::new(self.gpu.context().driver(), (8, 0), Arc::new(Ptx::new(ptx.to_owned())?))?;
        ptx.clone_into(&mut self.ptx);
        Ok(())
    }

    /// Adds a line to the text to print.
    pub fn say(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// Returns the text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Launches a kernel, waits for it and reports its cost: counts on the emulator, time on a GPU.
    ///
    /// # Safety
    /// The arguments and the shape must satisfy the kernel's safety contract.
    ///
    /// # Errors
    /// Fails if the launch does not fit the kernel or the device, or if the kernel faults.
    pub unsafe fn launch(
        &mut self,
        title: &str,
        shape: LaunchShape,
        call: impl Into<KernelCall>,
    ) -> Result<CostReport> {
        let call = call.into();
        // SAFETY: the caller guarantees the kernel's contract.
        self.measure(title, |gpu| unsafe { gpu.launch(shape, call) })
    }

    /// Runs `work` on the device, waits for it and reports the total cost of its launches.
    ///
    /// # Errors
    /// Returns the error of `work`, or of the device.
    pub fn measure(&mut self, title: &str, work: impl FnOnce(&mut Gpu) -> launch::Result<()>) -> Result<CostReport> {
        let [begin, end] = [Event::new(self.gpu.context())?, Event::new(self.gpu.context())?];
        begin.record(self.gpu.stream())?;
        let launches = self.gpu.reported(work);
        self.list();
        let launches = launches?;
        end.record(self.gpu.stream())?;
        end.synchronize()?;
        let mut sum = CostReport::default();
        for launch in &launches {
            sum.total.add(&launch.report.total);
            sum.barriers += launch.report.barriers;
            sum.distinct_sectors += launch.report.distinct_sectors;
        }
        if self.gpu.context().is_emulator() {
            self.say(cost(title, &sum));
        } else {
            let micros = end.since(&begin)?.as_secs_f64() * 1e6;
            self.say(format!("{title}: {micros:.1} microseconds, including launch overhead"));
        }
        Ok(sum)
    }

    /// Adds the PTX of kernels that have run and are not listed yet, if the lesson prints PTX.
    fn list(&mut self) {
        let names: Vec<&'static str> = self.gpu.launched().keys().copied().collect();
        for name in names {
            if self.lists && self.listed.insert(name) {
                self.text.extend(listing(&self.ptx, name));
            }
        }
    }
}

/// Formats the cost of launches, one line for each resource that they used.
fn cost(title: &str, report: &CostReport) -> String {
    let total = &report.total;
    let mut text = format!("{title}: {} warp instructions", total.instructions);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n    global memory: {} bytes requested, in {} sectors (at best {}; {} distinct)",
        total.global_bytes, total.sectors, total.ideal_sectors, report.distinct_sectors
    );
    if total.wavefronts > 0 {
        let _ = write!(
            text,
            "\n    shared memory: {} passes, {} of them for bank conflicts",
            total.wavefronts,
            total.bank_conflicts()
        );
    }
    if report.barriers > 0 {
        let _ = write!(text, "\n    block barriers passed: {}", report.barriers);
    }
    if total.divergent > 0 {
        let _ = write!(text, "\n    divergent branches: {} of {}", total.divergent, total.branches);
    }
    if total.tensor_flops > 0 {
        let _ = write!(text, "\n    tensor-core operations: {}", total.tensor_flops);
    }
    text
}

/// Runs a lesson with the command line's options and prints its text, even if it fails. Every lesson's `main` calls
/// this.
///
/// # Errors
/// Returns the lesson's error.
pub fn teach(run: impl FnOnce(&mut Lesson) -> Result<()>) -> Result<(), LessonFailed> {
    let lesson = Lesson::from_arguments(std::env::args().skip(1)).map_err(LessonFailed)?;
    let Some(mut lesson) = lesson else {
        println!("{USAGE}");
        return Ok(());
    };
    let result = run(&mut lesson);
    print!("{}", lesson.text);
    result.map_err(LessonFailed)
}
