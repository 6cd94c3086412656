//! How a context does the work of its streams.

use super::context::DriverContext;
use super::event::Recorded;
use super::host_call;
use super::launch_report::LaunchReport;
use super::queue::{QueuedWork, Until};
use super::result_code::{Result, ResultCode};
use super::work::{LaunchRequest, UploadSource, Work};
use crate::device::MemoryError;
use crate::fault::{Fault, FaultKind};
use crate::memory::DeviceAddress;
use std::time::Instant;

impl DriverContext {
    /// Does the work that must be done now.
    pub fn run(&mut self, until: Until) -> Result<()> {
        self.healthy()?;
        for item in self.queue.take(until) {
            if let Err(fault) = self.execute(item) {
                let code = ResultCode::of_fault(fault.kind);
                self.queue.clear();
                self.failed = Some(code);
                self.fault = Some(fault);
                return Err(code);
            }
        }
        Ok(())
    }

    fn execute(&mut self, item: QueuedWork<Work>) -> std::result::Result<(), Box<Fault>> {
        let wrong = |call: &str| {
            let call = call.to_string();
            move |error: MemoryError| Fault::of_call(FaultKind::OutOfBounds, &call, error.to_string())
        };
        let seq = item.seq();
        match item.work {
            Work::Launch(launch) => self.launch(launch)?,
            Work::Upload { to, from: UploadSource::Staged(bytes) } => {
                self.device.write(to, &bytes).map_err(wrong("copy to the device"))?;
            }
            Work::Upload { to, from: UploadSource::Pinned(bytes) } => {
                self.device.write(to, &bytes.read()).map_err(wrong("copy to the device"))?;
            }
            Work::Download { from, to } => to.write(&self.download(from, to.len())?),
            Work::Copy { to, from, bytes } => {
                self.device.copy(to, from, bytes).map_err(wrong("copy on the device"))?;
            }
            Work::Fill { at, pattern, count } => {
                self.device.write(at, &pattern.repeat(count)).map_err(wrong("fill"))?;
            }
            Work::Record { event } => {
                if let Some(event) = self.events.get_mut(&event)
                    && matches!(event.recorded, Recorded::Queued(at) if at == seq)
                {
                    event.at = Some(Instant::now());
                }
            }
            Work::Wait => {}
            Work::Call { function, data } => {
                // SAFETY: `cuLaunchHostFunc`, which alone makes this work, requires that the function can be called with this
                // data until it has been called.
                host_call::run(|| unsafe { function(std::ptr::with_exposed_provenance_mut(data)) });
            }
        }
        Ok(())
    }

    fn launch(&mut self, launch: LaunchRequest) -> std::result::Result<(), Box<Fault>> {
        let LaunchRequest { module, kernel, grid, block, dynamic_shared, args } = launch;
        let options = &self.launch_options;
        let report = self.device.launch_with(options, &module, &kernel, grid, block, dynamic_shared, &args)?;
        if let Some(reports) = &mut self.reports {
            reports.push(LaunchReport { kernel, grid, block, dynamic_shared, report });
        }
        Ok(())
    }

    fn download(&self, from: DeviceAddress, bytes: usize) -> std::result::Result<Vec<u8>, Box<Fault>> {
        let fault = |kind, error: MemoryError| Fault::of_call(kind, "copy to the host", error.to_string());
        self.device.check(from, bytes).map_err(|error| fault(FaultKind::OutOfBounds, error))?;
        if self.launch_options.check_initialised {
            return self.device.read(from, bytes).map_err(|error| fault(FaultKind::Uninitialised, error));
        }
        self.device.read_any(from, bytes).map_err(|error| fault(FaultKind::OutOfBounds, error))
    }
}
