//! `lab kernels`: lists the kernels that run on the GPU, and profiles them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use crate::bound::Demand;
use anyhow::{Result, anyhow, bail};
use argh::{ArgsInfo, FromArgs};
use cuda_std::launch::LaunchShape;
use engine::tools::backend::cuda::ptx::{self, Image};
use kernels::registry;
use simulator::gpu::GpuSpec;
use workbench::launch::{self, Context, Driver, Ptx};
use workbench::{Case, Cost, Counts, Gpu, LaunchReport, LineCounts, Occupancy, Scale};
use workbench::{cases, measure, product_loop, resources};

use cli::command::{Command, Positionals, Words};
use cli::suggest::shown;
use cli::table::Table;
use cli::values::count;

/// The command.
pub const COMMAND: Command = Command {
    name: "kernels",
    positionals: Positionals::Own("[profile <kernel>] "),
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["lab kernels", "lab kernels profile paged_attention_f16"],
    run,
};

/// Source lines that a profile shows per problem.
const LINES: usize = 12;

/// List the GPU kernels, each with an example launch, or profile kernels by the beginning of their name on their tests'
/// problems. The emulator shows costs and the most expensive source lines. A GPU shows times.
#[derive(ArgsInfo, FromArgs)]
struct Args {
    /// where to run: cuda or emulator (emulator)
    #[argh(option, arg_name = "device", default = "String::from(\"emulator\")")]
    device: String,
    /// compute capability of the emulated GPU: 8.0 or 9.0 (9.0)
    #[argh(option, arg_name = "x.y", default = "(9, 0)", from_str_fn(capability))]
    capability: (u32, u32),
    /// profile: source lines to show per problem (12)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    lines: Option<usize>,
}

fn capability(s: &str) -> Result<(u32, u32), String> {
    match s {
        "8.0" => Ok((8, 0)),
        "9.0" => Ok((9, 0)),
        _ => Err(format!("{s:?} is not a compute capability of the emulator: give 8.0 or 9.0")),
    }
}

fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let positionals: Vec<&str> = words.positionals.iter().map(String::as_str).collect();
    let name = match positionals[..] {
        [] if args.lines.is_none() => None,
        ["profile", name] => Some(name),
        [] | ["profile"] => {
            return Err(words.wrong("profile needs the name of a kernel or the beginning of one").into());
        }
        ["profile", _, more, ..] | [more, ..] => {
            return Err(words
                .wrong(format!("unexpected word {}: use kernels or kernels profile NAME", shown(more)))
                .into());
        }
    };
    let device = Device::new(Driver::named(&args.device)?, args.capability)?;
    match name {
        None => list(&device),
        Some(name) => device.profile(name, args.lines.unwrap_or(LINES)),
    }
}

/// A GPU or the emulator, and the kernels compiled for it.
struct Device {
    driver: &'static Driver,
    capability: (u32, u32),
    image: Image,
    /// PTX of the engine's kernels. `paper` is the PTX of the paper's kernels.
    engine: Arc<Ptx<'static>>,
    paper: Arc<Ptx<'static>>,
}

impl Device {
    fn new(driver: &'static Driver, capability: (u32, u32)) -> Result<Self> {
        // The option sets the emulator's compute capability. A GPU reports its own.
        let capability = if driver.is_emulator() { capability } else { Context::new(driver, 0)?.limits().capability };
        let (major, minor) = capability;
        let image = ptx::for_capability(major, minor)
            .ok_or_else(|| anyhow!("this GPU has compute capability {major}.{minor}; kernels need 8.0 or later"))?;
        let [engine, paper] = [image.engine(), image.paper()].map(|text| Ptx::new(text).map(Arc::new));
        Ok(Device { driver, capability, image, engine: engine?, paper: paper? })
    }

    /// Returns a GPU with empty memory and the kernels of a case.
    fn gpu(&self, case: &Case) -> launch::Result<Gpu> {
        // A case's name begins the names of its kernels. If no engine kernel matches, it is a case of the paper's.
        let is_papers = !registry::engine().any(|kernel| kernel.name.starts_with(case.kernel));
        Gpu::new(self.driver, self.capability, if is_papers { self.paper.clone() } else { self.engine.clone() })
    }

    fn cases(&self) -> Vec<Case> {
        cases::all(if self.driver.is_emulator() { Scale::Small } else { Scale::Full }, self.image.arch)
    }

    /// Returns the launches of a case without running them.
    fn launches(&self, case: &Case) -> launch::Result<BTreeMap<&'static str, LaunchShape>> {
        let mut gpu = self.gpu(case)?;
        let prepared = (case.prepare)(&mut gpu)?;
        gpu.rehearse(|gpu| (prepared.launch)(gpu))?;
        Ok(gpu.launched().clone())
    }

    fn profile(&self, beginning: &str, most: usize) -> Result<()> {
        let mut found = false;
        for case in self.cases() {
            let wanted = |name: &str| name.starts_with(beginning);
            if wanted(case.kernel) || self.launches(&case)?.keys().copied().any(wanted) {
                found = true;
                self.show(&case, most)?;
            }
        }
        if found { Ok(()) } else { bail!("no kernel's name begins with {}; `lab kernels` lists all", shown(beginning)) }
    }

    fn show(&self, case: &Case, most: usize) -> Result<()> {
        let mut out = io::stdout().lock();
        let mut gpu = self.gpu(case)?;
        writeln!(out, "{}: {} ({} on {})", case.kernel, case.shape, self.image.arch, gpu.context().name())?;
        let measured = measure(case, &mut gpu)?;
        if measured.error > 1.0 {
            bail!(
                "{} is wrong for {}: the error is {:.1} times the tolerance",
                case.kernel,
                case.shape,
                measured.error
            );
        }
        let floor = measured.floor_bytes;
        writeln!(out, "  minimum              {floor:>12} bytes, {} flops of matrix products", measured.floor_flops)?;
        if let Cost::Time { microseconds } = measured.cost {
            writeln!(
                out,
                "  time                 {microseconds:>12.1} us, {:.0} GB/s\n",
                floor as f64 / microseconds / 1e3
            )?;
            return Ok(());
        }
        for launch in measured.reports {
            let Counts { instructions, sectors, branches, divergent, tensor_flops, .. } = launch.report.total;
            let (ratio, conflicts) = (launch.report.total.sector_ratio(), launch.report.total.bank_conflicts());
            writeln!(out, "  {} of {:?} blocks of {} threads", launch.kernel, launch.grid, launch.block[0])?;
            writeln!(out, "    warp instructions  {instructions:>12}")?;
            writeln!(
                out,
                "    sectors            {sectors:>12} of 32 bytes, {ratio:.3} times the minimum for these accesses"
            )?;
            writeln!(out, "    bank conflicts     {conflicts:>12}")?;
            writeln!(out, "    divergent branches {divergent:>12} of {branches}")?;
            writeln!(out, "    tensor flops       {tensor_flops:>12}")?;
            self.show_bound(&mut out, &launch)?;
            writeln!(out, "{}", lines(launch.report.lines, most))?;
        }
        Ok(())
    }

    /// Returns the GPU whose bounds are shown: the first one in the list with this architecture.
    fn bounding(&self) -> Result<&'static GpuSpec> {
        GpuSpec::of_target(self.image.arch).ok_or_else(|| anyhow!("no GPU is known for {}", self.image.arch))
    }

    /// Returns how many blocks of a launch fit on one of that GPU's multiprocessors. `None` if the kernel's resources
    /// are unknown.
    fn occupancy(&self, kernel: &str, threads: u32, dynamic: u32) -> Result<Option<Occupancy>> {
        let gpu = self.bounding()?;
        Ok(resources(self.image.arch, kernel).map(|used| used.occupancy(threads, dynamic, gpu.limits)))
    }

    /// Prints a launch's occupancy, the size of its product loop in SASS, and the bound on its time.
    fn show_bound(&self, out: &mut impl Write, launch: &LaunchReport) -> Result<()> {
        let gpu = self.bounding()?;
        let threads = launch.block.iter().product();
        if let Some(held) = self.occupancy(&launch.kernel, threads, launch.dynamic_shared as u32)? {
            let Occupancy { blocks, warps, by } = held;
            writeln!(
                out,
                "    resident blocks    {blocks:>12} per multiprocessor with {warps} warps in all, limited by {by}"
            )?;
        }
        if let Some(found) = product_loop(self.image.arch, &launch.kernel) {
            let (instructions, products) = (found.instructions, found.products);
            writeln!(out, "    product loop       {instructions:>12} SASS instructions for {products} {}", found.name)?;
        }
        let name = gpu.name.to_uppercase();
        writeln!(out, "    bound on an {name:<7} by {}", Demand::counted(launch).on(gpu))?;
        Ok(())
    }
}

/// Returns the most expensive source lines, by the sum of their shares of instructions and sectors.
fn lines(mut lines: Vec<LineCounts>, most: usize) -> Table {
    let total = |of: fn(&Counts) -> u64| lines.iter().map(|line| of(&line.counts)).sum::<u64>().max(1) as f64;
    let (instructions, sectors) = (total(|c| c.instructions), total(|c| c.sectors));
    let share = |c: &Counts| c.instructions as f64 / instructions + c.sectors as f64 / sectors;
    lines.sort_by(|a, b| share(&b.counts).total_cmp(&share(&a.counts)));
    let mut table = Table::new(&["    instructions", "sectors", "x ideal", "conflicts", "line"]);
    for LineCounts { file, line, counts } in lines.into_iter().take(most) {
        table.row([
            counts.instructions.to_string(),
            counts.sectors.to_string(),
            if counts.ideal_sectors == 0 { "-".to_owned() } else { format!("{:.2}", counts.sector_ratio()) },
            counts.bank_conflicts().to_string(),
            format!("{}:{line}", file.trim_start_matches("./")),
        ]);
    }
    table
}

/// Prints every kernel with one of its launches.
fn list(device: &Device) -> Result<()> {
    let mut launches = BTreeMap::new();
    for case in device.cases() {
        for (name, shape) in device.launches(&case)? {
            launches.entry(name).or_insert((shape, case.shape.clone()));
        }
    }
    let headings = ["kernel", "registers", "static", "grid", "threads", "dynamic", "resident", "example"];
    let mut table = Table::new(&headings);
    for kernel in registry::shipped().filter(|kernel| kernel.is_for(device.image.arch)) {
        let number = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
        let used = resources(device.image.arch, kernel.name);
        let (shape, problem): (Option<LaunchShape>, _) = launches.get(kernel.name).cloned().unzip();
        let held = match shape {
            Some(LaunchShape { threads, shared, .. }) => device.occupancy(kernel.name, threads[0], shared)?,
            None => None,
        };
        table.row([
            kernel.name.to_owned(),
            number(used.map(|used| used.registers)),
            number(used.map(|used| used.shared)),
            shape.map_or("-".to_owned(), |LaunchShape { grid: [x, y, z], .. }| format!("{x} x {y} x {z}")),
            number(shape.map(|shape| shape.threads[0])),
            number(shape.map(|shape| shape.shared)),
            number(held.map(|held| held.blocks)),
            problem.unwrap_or_default(),
        ]);
    }
    writeln!(
        io::stdout(),
        "Kernels for {}.\nstatic, dynamic: bytes of shared memory per block. resident: blocks that fit on a multiprocessor of an {}.\n\n{table}",
        device.image.arch,
        device.bounding()?.name.to_uppercase()
    )?;
    Ok(())
}
