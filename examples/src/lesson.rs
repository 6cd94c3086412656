//! What the lessons share on the host: a device, launches, and what these cost.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use cuda_std::launch::{KernelCall, LaunchShape};
use emulator::CostReport;
use launch::{Driver, Event};
use workbench::Gpu;

use crate::listing::listing;

/// The kernels of all lessons. `cargo run -p quire-cuda-builder` makes it of their sources.
pub const PTX: &str = include_str!("../prebuilt/sm_80.ptx");

/// What a lesson returns.
pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// What went wrong, as `main` returns it: Rust prints that for debugging, and this prints the error's own words.
pub struct LessonFailed(Box<dyn std::error::Error>);

impl fmt::Debug for LessonFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How lessons are called.
const USAGE: &str =
    "usage: cargo run --example LESSON -- [--device emulator|cuda] [--ptx] [--without barrier|wait|fence]

  --device emulator   run on the emulator, which counts what kernels do (the default)
  --device cuda       run on the machine's first NVIDIA GPU, which only has times to tell
  --ptx               print the PTX of each kernel, with the Rust lines that it comes from
  --without WHAT      only for the exercises: take this away from the kernel";

/// A lesson that is under way: a device to run kernels on, and the text that it prints.
pub struct Lesson {
    /// The device, which also keeps the buffers.
    pub gpu: Gpu,
    /// What is to be taken away from the kernels of the exercises.
    pub without: Option<String>,
    ptx: String,
    lists: bool,
    listed: BTreeSet<&'static str>,
    text: String,
}

impl Lesson {
    /// A lesson on a driver's first device.
    ///
    /// # Errors
    /// If there is no device.
    pub fn new(driver: &'static Driver) -> Result<Lesson> {
        let gpu = Gpu::new(driver, (8, 0), PTX)?;
        let listed = BTreeSet::new();
        Ok(Lesson { gpu, without: None, ptx: PTX.to_owned(), lists: false, listed, text: String::new() })
    }

    /// A lesson as the command line asks for it; none if it asks how lessons are called.
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

    /// The same lesson, which prints the PTX of its kernels, too.
    pub fn with_listing(self) -> Lesson {
        Lesson { lists: true, ..self }
    }

    /// Opens the device again, with other PTX and without the buffers.
    ///
    /// # Errors
    /// If the device cannot be opened.
    pub fn load(&mut self, ptx: &str) -> Result<()> {
        self.gpu = Gpu::new(self.gpu.context().driver(), (8, 0), ptx)?;
        ptx.clone_into(&mut self.ptx);
        Ok(())
    }

    /// Adds a line to what is printed.
    pub fn say(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// All that was said.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Launches a kernel, waits for it, and says what it cost: on the emulator in counts, on a GPU in time.
    ///
    /// # Safety
    /// The kernel's contract holds for these arguments and this shape.
    ///
    /// # Errors
    /// If the launch does not fit the kernel or the device, and for the kernel's fault.
    pub unsafe fn launch(
        &mut self,
        title: &str,
        shape: LaunchShape,
        call: impl Into<KernelCall>,
    ) -> Result<CostReport> {
        let call = call.into();
        // SAFETY: this function's contract is the kernel's.
        self.measure(title, |gpu| unsafe { gpu.launch(shape, call) })
    }

    /// Does work on the device, waits for it, and says what all its launches cost together.
    ///
    /// # Errors
    /// What the work fails with.
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
            self.say(format!("{title}: {micros:.1} microseconds, the way there and back included"));
        }
        Ok(sum)
    }

    /// Lists the kernels that were launched and not listed yet, if the command line asks for that.
    fn list(&mut self) {
        let names: Vec<&'static str> = self.gpu.launched().keys().copied().collect();
        for name in names {
            if self.lists && self.listed.insert(name) {
                self.text.extend(listing(&self.ptx, name));
            }
        }
    }
}

/// What launches cost, in a line for each kind of thing that they used.
fn cost(title: &str, report: &CostReport) -> String {
    let total = &report.total;
    let mut text = format!("{title}: {} instructions of warps", total.instructions);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n    global memory: {} bytes asked for, in {} sectors (at best {}; {} different ones)",
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
        let _ = write!(text, "\n    barriers that blocks passed: {}", report.barriers);
    }
    if total.divergent > 0 {
        let _ = write!(text, "\n    branches at which a warp parted: {} of {}", total.divergent, total.branches);
    }
    if total.tensor_flops > 0 {
        let _ = write!(text, "\n    operations of tensor cores: {}", total.tensor_flops);
    }
    text
}

/// The `main` of a lesson: runs it as the command line says, and prints what it said, also if it failed.
///
/// # Errors
/// What the lesson fails with.
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
