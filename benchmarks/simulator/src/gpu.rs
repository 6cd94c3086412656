//! GPU specifications that the makers publish, for floors on a machine without a GPU.

use cuda_std::launch::LaunchShape;
use engine::DType;
use engine::tools::backend::cuda::{LaunchCost, element_type};
use kernels::attention::decode::DecodeLaunch;
use kernels::floor::Floor;
use kernels::gemm::plan::GpuLimits;
use resources::resources;
use serde_json::{Value, json};

/// Share of the nominal bandwidth that a read-only stream should reach: 4.5 TB/s of an H200's 4.8. Derived, not
/// measured.
const STREAM: f64 = 4.5 / 4.8;

/// A GPU model.
#[derive(Debug)]
pub struct GpuSpec {
    /// Its name on the command line.
    pub name: &'static str,
    /// Limits that launches are planned for.
    pub limits: GpuLimits,
    /// Target of the PTX that it runs.
    target: &'static str,
    /// Nominal bandwidth of its memory, in bytes per second.
    pub bandwidth: f64,
    /// Clock behind its nominal rates, in cycles per second.
    pub clock: f64,
    /// Operations per second of dense 16-bit matrix products with f32 sums.
    pub rate: f64,
    /// Source of the rate.
    pub rate_source: &'static str,
    /// Nominal bandwidth to other GPUs, in bytes per second and direction.
    pub link: f64,
    /// Name of the link.
    pub link_name: &'static str,
    /// Bytes of memory.
    pub memory: f64,
    /// Nominal bandwidth to the host's memory, in bytes per second and direction.
    pub bus: f64,
}

/// Makers state memory in GB but mean GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// Describes a GPU that is connected by PCIe 4.0.
const fn gpu(
    name: &'static str,
    (multiprocessors, shared_kib): (u32, u32),
    gib: f64,
    bandwidth: f64,
    (rate, clock): (f64, f64),
) -> GpuSpec {
    let limits = GpuLimits::new(multiprocessors, shared_kib << 10, (8, 0));
    let (link, link_name) = (32e9, "PCIe 4.0 x16");
    GpuSpec {
        name,
        limits,
        target: "sm_80",
        bandwidth,
        clock,
        rate,
        rate_source: "nominal",
        link,
        link_name,
        memory: gib * GIB,
        bus: 32e9,
    }
}

/// Describes a GPU of the Hopper generation. Its nominal rate is 989 TFLOP/s. Others measured 790 for cuBLAS on random
/// data.
const fn hopper(name: &'static str, gib: f64, bandwidth: f64) -> GpuSpec {
    let gpu = gpu(name, (132, 227), gib, bandwidth, (790e12, 1.83e9));
    let (link, link_name) = (450e9, "NVLink 4");
    let limits = GpuLimits::new(132, 227 << 10, (9, 0));
    GpuSpec {
        limits,
        target: "sm_90a",
        rate_source: "published by others for cuBLAS",
        link,
        link_name,
        bus: 64e9,
        ..gpu
    }
}

/// Describes an A100 with SXM.
const fn a100(name: &'static str, gib: f64, bandwidth: f64) -> GpuSpec {
    let (link, link_name) = (300e9, "NVLink 3");
    GpuSpec { link, link_name, ..gpu(name, (108, 163), gib, bandwidth, (312e12, 1.41e9)) }
}

/// The known GPUs. The H100 and both A100s (80 and 40 GB) have SXM.
pub const GPUS: [GpuSpec; 7] = [
    hopper("h200", 131.0, 4.8e12), // sold as 141 GB
    hopper("h100", 80.0, 3.35e12),
    a100("a100", 80.0, 2.039e12),
    a100("a100-40gb", 40.0, 1.555e12),
    gpu("l40s", (142, 99), 48.0, 0.864e12, (362e12, 2.49e9)),
    gpu("l4", (58, 99), 24.0, 0.3e12, (121e12, 2.04e9)),
    gpu("rtx-4090", (128, 99), 24.0, 1.008e12, (165e12, 2.52e9)),
];

/// Finds the GPU with this name, in any case.
///
/// # Errors
/// A message that lists the known names.
pub fn named(name: &str) -> Result<&'static GpuSpec, String> {
    const KNOWN: &[GpuSpec] = &GPUS;
    KNOWN.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<_> = GPUS.iter().map(|gpu| gpu.name).collect();
        format!("unknown GPU {name:?}; known GPUs: {}", names.join(", "))
    })
}

impl GpuSpec {
    /// Returns the first GPU that runs PTX for `target`.
    pub fn of_target(target: &str) -> Option<&'static GpuSpec> {
        const KNOWN: &[GpuSpec] = &GPUS;
        KNOWN.iter().find(|gpu| gpu.target == target)
    }

    /// Returns the bytes per second that a read-only stream should reach.
    pub fn stream(&self) -> f64 {
        STREAM * self.bandwidth
    }

    /// Returns the least seconds of a launch: its bytes at the rate of a stream or its operations at the tensor cores'
    /// rate, whichever take longer.
    pub fn seconds(&self, floor: Floor) -> f64 {
        self.memory_seconds(floor).max(floor.flops as f64 / self.rate)
    }

    /// Returns the least seconds of a launch or an exchange, including the time on the links.
    pub fn seconds_of(&self, cost: &LaunchCost) -> f64 {
        self.seconds(cost.floor).max(cost.peers as f64 / self.link)
    }

    /// Returns whether the bytes take at least as long as the operations.
    pub fn is_bound_by_memory(&self, floor: Floor) -> bool {
        self.memory_seconds(floor) >= floor.flops as f64 / self.rate
    }

    fn memory_seconds(&self, floor: Floor) -> f64 {
        floor.bytes as f64 / self.stream()
    }

    /// Returns the blocks of decode attention that fit a multiprocessor, by the recorded registers of its PTX and by
    /// shared memory. If there is no record of the kernel, returns 1.
    pub fn attention_blocks(&self, launch: DecodeLaunch, dtype: DType) -> u32 {
        let kernel = element_type(dtype).ok().map(|element| launch.descriptor(element).name);
        let used = kernel.and_then(|kernel| resources(self.target, kernel));
        let LaunchShape { threads, shared, .. } = launch.shape();
        used.map_or(1, |used| used.occupancy(threads[0], shared, self.limits).blocks.max(1))
    }

    /// Returns the specifications that floors are computed with.
    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "multiprocessors": self.limits.multiprocessors,
            "shared_bytes": self.limits.shared_bytes,
            "nominal_bytes_per_second": self.bandwidth,
            "derived_stream_bytes_per_second": self.stream(),
            "flops_per_second": self.rate,
            "flops_source": self.rate_source,
            "nominal_link_bytes_per_second": self.link,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use kernels::attention::AttentionShape;

    use super::*;

    #[test]
    fn decode_attention_reaches_its_intended_occupancy() {
        let blocks = |gpu: &str, heads, kv_heads, size| {
            let launch = DecodeLaunch::new(AttentionShape::new(heads, kv_heads, size, 16).unwrap(), 1);
            named(gpu).unwrap().attention_blocks(launch, DType::F16)
        };
        assert_eq!([32, 64, 80, 96, 128, 256].map(|size| blocks("H200", 32, 32, size)), [4, 3, 3, 3, 3, 3]);
        // Partial results of eight heads take shared memory in addition to the rings. The other two GPUs have less
        // shared memory.
        assert_eq!([blocks("h200", 32, 4, 128), blocks("a100", 32, 32, 128), blocks("l40s", 32, 32, 128)], [2, 2, 1]);
        assert!(named("abacus").unwrap_err().contains("h200, h100"));
    }

    #[test]
    fn the_slower_of_memory_and_tensor_cores_decides() {
        let h200 = named("h200").unwrap();
        let [streams, multiplies] =
            [(9 << 40, 1 << 40), (1 << 30, 1 << 50)].map(|(bytes, flops)| Floor { bytes, flops });
        assert!(h200.is_bound_by_memory(streams) && !h200.is_bound_by_memory(multiplies));
        assert_eq!(h200.seconds(streams), (9u64 << 40) as f64 / 4.5e12);
        assert_eq!(h200.seconds(multiplies), (1u64 << 50) as f64 / 790e12);
    }
}
