//! A context: its memory, streams, modules, events, graphs and queued work.

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
    /// How the stream is ordered relative to other streams.
    pub order: StreamOrder,
    /// The priority, which is only stored and returned.
    pub priority: i32,
}

/// The state of one driver context.
pub(super) struct DriverContext {
    pub device_options: DeviceOptions,
    pub launch_options: LaunchOptions,
    pub settings: ContextSettings,
    /// The ordinal of its device.
    pub ordinal: i32,
    /// Its index among the devices of its group.
    pub member: usize,
    /// The ordering information of ended launches, which later launches start from.
    pub before: Option<Arc<Others>>,
    pub pinned: PinnedMemory,
    /// The buffers and their sizes in bytes.
    pub buffers: BTreeMap<DeviceAddress, usize>,
    /// The allocations that are managed memory.
    pub managed: BTreeSet<DeviceAddress>,
    pub streams: HashMap<StreamId, StreamSettings>,
    pub events: HashMap<u32, EventState>,
    pub modules: HashMap<u32, Arc<PtxModule>>,
    pub functions: HashMap<u32, LoadedKernel>,
    pub links: HashMap<u32, Linker>,
    /// Graphs and instantiated graphs. Both are lists of work here.
    pub graphs: HashMap<u32, Arc<[Work]>>,
    pub captures: Vec<Capture>,
    pub queue: WorkQueue<Work>,
    /// Work that must run now, in order.
    pub due: VecDeque<QueuedWork<Work>>,
    /// When work ends on the stream timelines, for event times.
    pub timeline: Timeline,
    /// The error that ended the context.
    pub failed: Option<ResultCode>,
    /// The last fault or refusal, in full.
    pub fault: Option<Box<Fault>>,
    /// The reports of launches, or `None` if they are not collected.
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

    /// Returns the id for a new object.
    pub fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Fails if an earlier error ended the context. As on a GPU, every later call returns that error.
    pub fn healthy(&self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Records a refused call with a message. Returns the code for the caller.
    pub fn refuse(&mut self, call: &str, message: impl ToString) -> ResultCode {
        self.record_refusal(Fault::of_call(FaultKind::Launch, call, message.to_string()));
        ResultCode::InvalidValue
    }

    /// Records a refused call and notifies the listener.
    pub fn record_refusal(&mut self, why: Box<Fault>) {
        notice::notify(Notice::Refusal(&why));
        self.fault = Some(why);
    }

    /// Records that a kernel uses an instruction form that the emulator does not support.
    pub fn refuse_form(&mut self, kernel: &str, why: &ParseError) -> ResultCode {
        let fault = Fault::of_call(FaultKind::Unsupported, kernel, why.message.clone());
        self.record_refusal(Box::new(Fault { ptx_line: why.line, ..*fault }));
        ResultCode::NotSupported
    }

    /// How a stream is ordered relative to other streams.
    pub fn order(&self, stream: StreamId) -> Result<StreamOrder> {
        if stream == DEFAULT_STREAM {
            return Ok(StreamOrder::Default);
        }
        self.streams.get(&stream).map(|stream| stream.order).ok_or(ResultCode::InvalidHandle)
    }

    /// Fails if `stream` is the default stream and a blocking stream is being captured. That capture becomes invalid.
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

    /// Whether the capture that a stream takes part in can still succeed, or `None` if it takes part in none.
    pub fn capturing(&mut self, stream: StreamId) -> Option<bool> {
        self.capture_of(stream).map(|capture| !capture.invalid)
    }

    /// Queues work in a stream, or records it if the stream is being captured.
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

    /// Fails if an open capture forbids the calling thread to wait. That capture becomes invalid.
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

    /// Takes the last fault in full. A fault that ended the context is kept for later calls.
    pub fn take_fault(&mut self) -> Option<Box<Fault>> {
        if self.failed.is_some() { self.fault.clone() } else { self.fault.take() }
    }
}
