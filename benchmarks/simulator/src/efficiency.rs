//! The share of the published performance of GPUs that programs reach. Every constant has a source. Only [`PAPER_HOST`]
//! was chosen to reproduce a figure of the paper.

use engine::tools::backend::cuda::LaunchCost;
use kernels::floor::Floor;

use crate::gpu::GpuSpec;

/// Share of a memory's nominal bandwidth that streams reach: 1.4 of the A100's 1.555 TB/s in BabelStream (Tsai, Cojean and
/// Anzt, "Evaluating the performance of NVIDIA's A100 Ampere GPU for sparse linear algebra computations", 2020).
const BANDWIDTH: f64 = 0.9;

/// Share of the tensor cores' nominal rate that cuBLAS reaches on random data: 257 of the A100's 312 TFLOP/s (Horace
/// He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024). It does not apply to
/// Hopper GPUs, whose listed rate is a measured one.
const RATE: f64 = 257.0 / 312.0;

/// Share of a link's nominal bandwidth that NCCL's all-reduce reaches: a bus bandwidth of about 235 of NVLink 3's 300
/// GB/s (NVIDIA's nccl-tests on machines with eight A100s). Assumed for other links too.
const LINK: f64 = 235.0 / 300.0;

/// Seconds between two kernels of a stream that do not overlap: a kernel of 2.9 us takes 3.8 us (NVIDIA, "Getting
/// started with CUDA graphs", 2019).
const LAUNCH: f64 = 0.9e-6;

/// Seconds of the smallest exchange between GPUs of one machine. Assumed, from the order of magnitude of NCCL's
/// latency.
const EXCHANGE: f64 = 20e-6;

/// Share of a bus's nominal bandwidth that large copies to the host's memory reach: about 25 of 32 GB/s for PCIe 4.0
/// x16 (NVIDIA's bandwidthTest with page-locked memory). Assumed for all buses.
const BUS: f64 = 25.0 / 32.0;

/// Seconds that each copy between GPU and host takes in addition to its bytes. Assumed, from the order of magnitude of
/// a cudaMemcpyAsync call.
const COPY: f64 = 10e-6;

/// Ratio of the time of attention over a block table to its time over contiguous keys and values. The paper says that paged
/// attention takes 20 to 26 % longer (7.1, figure 18a).
pub const PAGED_ATTENTION: f64 = 1.23;

/// Seconds per step that the GPU waits for the host, if the host is assumed to be as slow as the paper's. Chosen to reproduce a
/// figure: at 30 Alpaca requests per second Quire batches 132 requests, as vLLM did (figure 13).
pub const PAPER_HOST: f64 = 17e-3;

/// Assumed performance of a GPU in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Memory bandwidth, in bytes per second.
    pub bandwidth: f64,
    /// Tensor-core operations per second.
    pub rate: f64,
    /// Bandwidth from other GPUs, in bytes per second.
    pub link: f64,
    /// Seconds of a launch in addition to its work.
    pub launch: f64,
    /// Seconds of an exchange between GPUs in addition to its bytes.
    pub exchange: f64,
    /// Bandwidth to or from the host, in bytes per second.
    pub bus: f64,
    /// Seconds of a copy to or from the host in addition to its bytes.
    pub copy: f64,
}

impl Efficiency {
    /// Returns the performance that is assumed of a GPU in use.
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

    /// Returns the performance behind the floors of `lab floor`, without any overhead.
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

    /// Returns the seconds of a launch or of an exchange between GPUs.
    pub fn seconds(&self, cost: &LaunchCost) -> f64 {
        let overhead = if cost.peers > 0 { self.exchange } else { self.launch };
        self.work_seconds(cost.floor).max(cost.peers as f64 / self.link) + overhead
    }

    /// Returns the seconds of a launch's work alone: its bytes or its operations, whichever take longer.
    pub fn work_seconds(&self, floor: Floor) -> f64 {
        (floor.bytes as f64 / self.bandwidth).max(floor.flops as f64 / self.rate)
    }
}
