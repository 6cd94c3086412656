//! A context: memory, streams, modules, and the work that is still to be done.

use super::capture::Capture;
use super::event::EventState;
use super::function::LoadedKernel;
use super::host::PinnedMemory;
use super::launch_report::LaunchReport;
use super::linker::Linker;
use super::notice::{self, Notice};
use super::options::DeviceOptions;
use super::queue::{QueuedWork, StreamId, StreamOrder, WorkQueue};
use super::result_code::{Result, ResultCode};
use super::settings::ContextSettings;
use super::timeline::Timeline;
use super::work::Work;
use crate::exec::Others;
use crate::fault::{Fault, FaultKind};
use crate::launch_options::LaunchOptions;
use crate::memory::DeviceAddress;
use crate::module::PtxModule;
use crate::ptx::ParseError;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// The default stream of every context.
pub(super) const DEFAULT_STREAM: StreamId = 0;

/// A stream other than the default one.
pub(super) struct StreamSettings {
    /// How it is ordered with others.
    pub order: StreamOrder,
    /// Its priority, which changes nothing here.
    pub priority: i32,
}

/// A context of the driver.
pub(super) struct DriverContext {
    pub device_options: DeviceOptions,
    pub launch_options: LaunchOptions,
    pub settings: ContextSettings,
    /// The number of the device.
    pub ordinal: i32,
    /// Its number among the devices of its group.
    pub member: usize,
    /// What comes before every launch to come, of launches that are over.
    pub before: Option<Arc<Others>>,
    pub pinned: PinnedMemory,
    /// Sizes of the buffers.
    pub buffers: BTreeMap<DeviceAddress, usize>,
    /// The buffers that are managed memory.
    pub managed: BTreeSet<DeviceAddress>,
    pub streams: HashMap<StreamId, StreamSettings>,
    pub events: HashMap<u32, EventState>,
    pub modules: HashMap<u32, Arc<PtxModule>>,
    pub functions: HashMap<u32, LoadedKernel>,
    pub links: HashMap<u32, Linker>,
    /// Graphs, and graphs made ready to run, which are the same here.
    pub graphs: HashMap<u32, Arc<[Work]>>,
    pub captures: Vec<Capture>,
    pub queue: WorkQueue<Work>,
    /// Work that must be done now, in order.
    pub due: VecDeque<QueuedWork<Work>>,
    /// When work is done, for events.
    pub timeline: Timeline,
    /// The error that ended the context.
    pub failed: Option<ResultCode>,
    /// What went wrong last, in full.
    pub fault: Option<Box<Fault>>,
    /// The reports of launches, if they are collected.
    pub reports: Option<Vec<LaunchReport>>,
    next: u32,
}

impl DriverContext {
    pub fn new(device_options: DeviceOptions, launch_options: LaunchOptions, ordinal: i32) -> Self {
        Self {
            device_options,
            launch_options,
            settings: ContextSettings::default(),
            ordinal,
            member: 0,
            before: None,
            pinned: PinnedMemory::default(),
            buffers: BTreeMap::new(),
            managed: BTreeSet::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            links: HashMap::new(),
            graphs: HashMap::new(),
            captures: Vec::new(),
            queue: WorkQueue::default(),
            due: VecDeque::new(),
            timeline: Timeline::default(),
            failed: None,
            fault: None,
            reports: None,
            next: 16, // small numbers mean default streams
        }
    }

    /// A number for a new object.
    pub fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Fails if the context has failed for good. As on a GPU, every later call then gets the same error.
    pub fn healthy(&self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Remembers in words why a call was refused.
    pub fn refuse(&mut self, call: &str, message: impl ToString) -> ResultCode {
        self.refuse_for(Fault::of_call(FaultKind::Launch, call, message.to_string()));
        ResultCode::InvalidValue
    }

    /// Remembers why a call was refused, and tells whoever listens.
    pub fn refuse_for(&mut self, why: Box<Fault>) {
        notice::tell(Notice::Refusal(&why));
        self.fault = Some(why);
    }

    /// Remembers which form of a kernel's instructions the emulator does not have.
    pub fn refuse_form(&mut self, kernel: &str, why: &ParseError) -> ResultCode {
        let fault = Fault::of_call(FaultKind::Unsupported, kernel, why.message.clone());
        self.refuse_for(Box::new(Fault { ptx_line: why.line, ..*fault }));
        ResultCode::NotSupported
    }

    /// How a stream is ordered with others.
    pub fn order(&self, stream: StreamId) -> Result<StreamOrder> {
        if stream == DEFAULT_STREAM {
            return Ok(StreamOrder::Default);
        }
        self.streams.get(&stream).map(|stream| stream.order).ok_or(ResultCode::InvalidHandle)
    }

    /// Checks that the default stream, if it is meant, does not come between a blocking stream and its capture.
    pub fn check_default(&mut self, stream: StreamId) -> Result<()> {
        if stream != DEFAULT_STREAM {
            return Ok(());
        }
        let (captures, streams) = (&mut self.captures, &self.streams);
        let blocking = |capture: &Capture| {
            streams.iter().any(|(&id, stream)| stream.order == StreamOrder::Blocking && capture.has(id))
        };
        match captures.iter_mut().find(|capture| blocking(capture)) {
            Some(capture) => {
                capture.invalid = true;
                Err(ResultCode::CaptureImplicit)
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
                Err(ResultCode::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }

    /// What went wrong last, in full. What ended the context is kept for later calls.
    pub fn take_fault(&mut self) -> Option<Box<Fault>> {
        if self.failed.is_some() { self.fault.clone() } else { self.fault.take() }
    }
}
