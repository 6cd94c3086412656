//! What programs reach of the figures that makers of GPUs publish: every constant with its source. None of them was chosen so
//! that a figure of the paper comes out, but the one that says so.

use engine::backend::cuda::LaunchCost;
use kernels::floor::Floor;

use crate::gpu::GpuSpec;

/// Share of a memory's nominal bandwidth that streams reach: 1.4 of the A100's 1.555 TB/s in BabelStream (Tsai, Cojean and
/// Anzt, "Evaluating the performance of NVIDIA's A100 Ampere GPU for sparse linear algebra computations", 2020).
const BANDWIDTH: f64 = 0.9;

/// Share of the nominal rate of tensor cores that cuBLAS reaches on random data: 257 of the A100's 312 TFLOP/s (Horace He,
/// "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024). Of Hopper GPUs the rate that
/// is known is one that was reached.
const RATE: f64 = 257.0 / 312.0;

/// Share of a link's nominal bandwidth that NCCL's all-reduce reaches: a bus bandwidth of some 235 of NVLink 3's 300 GB/s
/// (NVIDIA's nccl-tests on machines of eight A100s). Assumed for other links too.
const LINK: f64 = 235.0 / 300.0;

/// Seconds between two kernels of a stream that do not overlap: 3.8 us a kernel of 2.9 (NVIDIA, "Getting started with CUDA
/// graphs", 2019).
const LAUNCH: f64 = 0.9e-6;

/// Seconds of an exchange between GPUs of one machine however small it is: assumed, from the order of NCCL's latency.
const EXCHANGE: f64 = 20e-6;

/// Share of a bus's nominal bandwidth that large copies to the host's memory reach: some 25 of 32 GB/s of PCIe 4.0 x16
/// (NVIDIA's bandwidthTest with page-locked memory). Assumed for all.
const BUS: f64 = 25.0 / 32.0;

/// Seconds that each copy between GPU and host takes beside the time of its bytes: assumed, from the order of a call of
/// cudaMemcpyAsync.
const COPY: f64 = 10e-6;

/// How much longer attention over a block table takes than over contiguous keys and values: the paper says 20 to 26 %
/// (7.1, figure 18a).
pub const PAGED_ATTENTION: f64 = 1.23;

/// Seconds of a step in which the paper's GPU waits for its host, where a host that slow is assumed. This one is chosen so
/// that a figure comes out: at 30 requests of Alpaca a second Quire batches as many as vLLM did, 132 (figure 13).
pub const PAPER_HOST: f64 = 17e-3;

/// What is assumed of a GPU in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Bytes of its memory a second.
    pub bandwidth: f64,
    /// Operations of tensor cores a second.
    pub rate: f64,
    /// Bytes from other GPUs a second.
    pub link: f64,
    /// Seconds of a launch beside its work.
    pub launch: f64,
    /// Seconds of an exchange between GPUs beside its bytes.
    pub exchange: f64,
    /// Bytes a second to or from the host.
    pub bus: f64,
    /// Seconds of a copy to or from the host beside its bytes.
    pub copy: f64,
}

impl Efficiency {
    /// The figures that are assumed of a GPU in use.
    pub fn of(gpu: &GpuSpec) -> Self {
        let reached = gpu.rate_source != "nominal";
        Efficiency {
            bandwidth: BANDWIDTH * gpu.bandwidth,
            rate: if reached { gpu.rate } else { RATE * gpu.rate },
            link: LINK * gpu.link,
            launch: LAUNCH,
            exchange: EXCHANGE,
            bus: BUS * gpu.bus,
            copy: COPY,
        }
    }

    /// The floors of `quire bench floor`: nothing is lost anywhere.
    pub fn floor(gpu: &GpuSpec) -> Self {
        Efficiency {
            bandwidth: gpu.stream(),
            rate: gpu.rate,
            link: gpu.link,
            launch: 0.0,
            exchange: 0.0,
            bus: gpu.bus,
            copy: 0.0,
        }
    }

    /// Seconds of a launch, or of an exchange between GPUs.
    pub fn seconds(&self, cost: &LaunchCost) -> f64 {
        let beside = if cost.peers > 0 { self.exchange } else { self.launch };
        self.work_seconds(cost.floor).max(cost.peers as f64 / self.link) + beside
    }

    /// Seconds of a launch's work alone: its bytes or its operations, whichever take longer.
    pub fn work_seconds(&self, floor: Floor) -> f64 {
        (floor.bytes as f64 / self.bandwidth).max(floor.flops as f64 / self.rate)
    }
}
