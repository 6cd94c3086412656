//! A context: memory, streams, modules, and the work that is still to be done.

use super::capture::Capture;
use super::code::{Code, Result};
use super::events::{Event, Recorded};
use super::host::PinnedMemory;
use super::modules::Function;
use super::options::DeviceOptions;
use super::process;
use super::queue::{Item, Order, Queue, StreamId, Until};
use super::work::{Launch, Source, Work};
use crate::device::{Device, MemoryError};
use crate::fault::{Fault, FaultKind};
use crate::launch_options::LaunchOptions;
use crate::memory::DevicePtr;
use crate::module::Module;
use crate::report::Report;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The default stream of every context.
pub(super) const DEFAULT_STREAM: StreamId = 0;

/// A launch, and what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchReport {
    /// The kernel's name.
    pub kernel: String,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: usize,
    /// What it cost.
    pub report: Report,
}

/// A stream other than the default one.
pub(super) struct Stream {
    pub order: Order,
    pub priority: i32,
}

/// Everything that a context has.
pub(super) struct Context {
    pub device_options: DeviceOptions,
    pub launch_options: LaunchOptions,
    pub device: Device,
    pub pinned: PinnedMemory,
    /// Sizes of the buffers.
    pub buffers: HashMap<DevicePtr, usize>,
    pub streams: HashMap<StreamId, Stream>,
    pub events: HashMap<u32, Event>,
    pub modules: HashMap<u32, Arc<Module>>,
    pub functions: HashMap<u32, Function>,
    /// Graphs, and graphs made ready to run, which are the same here.
    pub graphs: HashMap<u32, Arc<[Work]>>,
    pub captures: Vec<Capture>,
    pub queue: Queue<Work>,
    /// What has gone wrong for good.
    failed: Option<Code>,
    /// What went wrong last, in full.
    pub fault: Option<Box<Fault>>,
    /// The reports of launches, if they are collected.
    pub reports: Option<Vec<LaunchReport>>,
    next: u32,
}

impl Context {
    pub fn new(device_options: DeviceOptions) -> Self {
        Self {
            device_options,
            launch_options: LaunchOptions::default(),
            device: Device::new(),
            pinned: PinnedMemory::default(),
            buffers: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            captures: Vec::new(),
            queue: Queue::default(),
            failed: None,
            fault: None,
            reports: None,
            next: 16, // small numbers mean default streams
        }
    }

    /// A number for something new.
    pub fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// An error for good is the answer to every later call, as on a GPU.
    pub fn healthy(&self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Remembers in words what a call was refused for.
    pub fn refuse(&mut self, call: &str, message: impl ToString) -> Code {
        self.fault = Some(Fault::of_call(FaultKind::Launch, call, message.to_string()));
        Code::InvalidValue
    }

    pub fn create_stream(&mut self, order: Order, priority: i32) -> Result<StreamId> {
        self.healthy()?;
        let id = self.id();
        self.streams.insert(id, Stream { order, priority });
        Ok(id)
    }

    /// Forgets a stream; its work will be done all the same.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<()> {
        self.streams.remove(&stream).map(|_| ()).ok_or(Code::InvalidHandle)?;
        self.captures.iter_mut().filter(|capture| capture.has(stream)).for_each(|capture| capture.invalid = true);
        Ok(())
    }

    pub fn order(&self, stream: StreamId) -> Result<Order> {
        if stream == DEFAULT_STREAM {
            return Ok(Order::Default);
        }
        self.streams.get(&stream).map(|stream| stream.order).ok_or(Code::InvalidHandle)
    }

    /// Checks that the default stream, if it is meant, does not come between a blocking stream and its capture.
    pub fn check_default(&mut self, stream: StreamId) -> Result<()> {
        if stream != DEFAULT_STREAM {
            return Ok(());
        }
        let (captures, streams) = (&mut self.captures, &self.streams);
        let blocking =
            |capture: &Capture| streams.iter().any(|(&id, stream)| stream.order == Order::Blocking && capture.has(id));
        match captures.iter_mut().find(|capture| blocking(capture)) {
            Some(capture) => {
                capture.invalid = true;
                Err(Code::CaptureImplicit)
            }
            None => Ok(()),
        }
    }

    /// The capture that a stream takes part in.
    pub fn capture_of(&mut self, stream: StreamId) -> Option<&mut Capture> {
        self.captures.iter_mut().find(|capture| capture.has(stream))
    }

    /// Whether a stream is captured, and whether that capture can still succeed.
    pub fn capturing(&mut self, stream: StreamId) -> Option<bool> {
        self.capture_of(stream).map(|capture| !capture.invalid)
    }

    /// Asks a stream to do something, or records it if the stream is captured.
    pub fn submit(&mut self, stream: StreamId, work: Work) -> Result<()> {
        self.healthy()?;
        let order = self.order(stream)?;
        self.check_default(stream)?;
        if let Some(capture) = self.capture_of(stream) {
            return capture.add(stream, work);
        }
        self.queue.push(stream, order, None, work);
        Ok(())
    }

    /// Fails if a capture forbids what could wait for it, and spoils the capture.
    pub fn check_waiting(&mut self) -> Result<()> {
        self.healthy()?;
        match self.captures.iter_mut().find(|capture| capture.forbids_waiting()) {
            Some(capture) => {
                capture.invalid = true;
                Err(Code::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }

    /// Does all work of a stream.
    pub fn synchronize_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        self.run(Until::Stream(stream))
    }

    /// Whether a stream's work is done. Asking lets time pass: it is done afterwards.
    pub fn query_stream(&mut self, stream: StreamId) -> Result<()> {
        self.check_stream(stream)?;
        let pending = self.queue.is_pending(Until::Stream(stream));
        self.run(Until::Stream(stream))?;
        if pending { Err(Code::NotReady) } else { Ok(()) }
    }

    fn check_stream(&mut self, stream: StreamId) -> Result<()> {
        self.healthy()?;
        self.order(stream)?;
        self.check_default(stream)?;
        match self.capture_of(stream) {
            Some(capture) => {
                capture.invalid = true;
                Err(Code::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }

    /// Does all work.
    pub fn synchronize(&mut self) -> Result<()> {
        self.check_waiting()?;
        self.run(Until::Everything)
    }

    /// Does all work, since memory is to go that it may use; what fails in it is for later calls to tell. Fails only where
    /// a capture forbids it.
    pub fn finish(&mut self) -> Result<()> {
        if self.failed.is_none() {
            self.check_waiting()?;
            let _ = self.run(Until::Everything);
        }
        Ok(())
    }

    /// What went wrong last, in full. What ended the context is kept for later calls.
    pub fn take_fault(&mut self) -> Option<Box<Fault>> {
        if self.failed.is_some() { self.fault.clone() } else { self.fault.take() }
    }

    /// Does what must be done now.
    pub fn run(&mut self, until: Until) -> Result<()> {
        self.healthy()?;
        for item in self.queue.take(until) {
            if let Err(fault) = self.execute(item) {
                let code = Code::of_fault(fault.kind);
                self.queue.clear();
                self.failed = Some(code);
                self.fault = Some(fault);
                return Err(code);
            }
        }
        Ok(())
    }

    fn execute(&mut self, item: Item<Work>) -> std::result::Result<(), Box<Fault>> {
        let wrong = |call: &str| {
            let call = call.to_string();
            move |error: MemoryError| Fault::of_call(FaultKind::OutOfBounds, &call, error.to_string())
        };
        let seq = item.seq();
        match item.work {
            Work::Launch(launch) => self.launch(launch)?,
            Work::Upload { to, from: Source::Staged(bytes) } => {
                self.device.write(to, &bytes).map_err(wrong("copy to the device"))?;
            }
            Work::Upload { to, from: Source::Pinned(bytes) } => {
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
                // SAFETY: who asked for the call vouched for function and data.
                process::call(|| unsafe { function(std::ptr::with_exposed_provenance_mut(data)) });
            }
        }
        Ok(())
    }

    fn launch(&mut self, launch: Launch) -> std::result::Result<(), Box<Fault>> {
        let Launch { module, kernel, grid, block, dynamic_shared, args } = launch;
        let options = &self.launch_options;
        let report = self.device.launch_with(options, &module, &kernel, grid, block, dynamic_shared, &args)?;
        if let Some(reports) = &mut self.reports {
            reports.push(LaunchReport { kernel, grid, block, dynamic_shared, report });
        }
        Ok(())
    }

    fn download(&self, from: DevicePtr, bytes: usize) -> std::result::Result<Vec<u8>, Box<Fault>> {
        let fault = |kind, error: MemoryError| Fault::of_call(kind, "copy to the host", error.to_string());
        self.device.check(from, bytes).map_err(|error| fault(FaultKind::OutOfBounds, error))?;
        if self.launch_options.check_initialised {
            return self.device.read(from, bytes).map_err(|error| fault(FaultKind::Uninitialised, error));
        }
        self.device.read_any(from, bytes).map_err(|error| fault(FaultKind::OutOfBounds, error))
    }
}
