//! GPUs, by the figures that their makers publish: for floors on a machine that has none to be measured.

use cuda_std::launch::LaunchShape;
use engine::backend::cuda::{LaunchCost, element_type};
use engine::tensor::DType;
use kernels::attention::decode::DecodeLaunch;
use kernels::gemm::plan::GpuLimits;
use serde_json::{Value, json};
use workbench::{Floor, resources};

/// What a read-only stream should reach of the nominal bandwidth: 4.5 TB/s of an H200's 4.8. Derived, not measured.
const STREAM: f64 = 4.5 / 4.8;

/// A GPU.
#[derive(Debug)]
pub struct GpuSpec {
    /// Its name on the command line.
    pub name: &'static str,
    /// What launches are planned for.
    pub limits: GpuLimits,
    /// The PTX that it runs.
    target: &'static str,
    /// Nominal bandwidth of its memory, in bytes a second.
    pub bandwidth: f64,
    /// Cycles a second at which it has its nominal rates.
    pub clock: f64,
    /// Operations a second of dense 16-bit matrix products that are summed in f32.
    pub rate: f64,
    /// Where the rate comes from.
    pub rate_source: &'static str,
    /// Nominal bandwidth to other GPUs, in bytes a second and each direction.
    pub link: f64,
    /// What the link is.
    pub link_name: &'static str,
    /// Bytes of memory.
    pub memory: f64,
    /// Nominal bandwidth to the host's memory, in bytes a second and each direction.
    pub bus: f64,
}

/// GB of memory, of which makers speak, are GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// A GPU behind PCIe 4.0.
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

/// A GPU of the Hopper generation, of whose nominal 989 TFLOP/s others found cuBLAS to reach 790 on random data.
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

/// An A100 with SXM.
const fn a100(name: &'static str, gib: f64, bandwidth: f64) -> GpuSpec {
    let (link, link_name) = (300e9, "NVLink 3");
    GpuSpec { link, link_name, ..gpu(name, (108, 163), gib, bandwidth, (312e12, 1.41e9)) }
}

/// Those that are known: an H100 with SXM, A100s with 80 and with 40 GB.
pub const GPUS: [GpuSpec; 7] = [
    hopper("h200", 131.0, 4.8e12), // 141 GB
    hopper("h100", 80.0, 3.35e12),
    a100("a100", 80.0, 2.039e12),
    a100("a100-40gb", 40.0, 1.555e12),
    gpu("l40s", (142, 99), 48.0, 0.864e12, (362e12, 2.49e9)),
    gpu("l4", (58, 99), 24.0, 0.3e12, (121e12, 2.04e9)),
    gpu("rtx-4090", (128, 99), 24.0, 1.008e12, (165e12, 2.52e9)),
];

/// The GPU of this name.
///
/// # Errors
/// A sentence with the names there are.
pub fn named(name: &str) -> Result<&'static GpuSpec, String> {
    const KNOWN: &[GpuSpec] = &GPUS;
    KNOWN.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<_> = GPUS.iter().map(|gpu| gpu.name).collect();
        format!("{name:?} is not a GPU that is known; {} are", names.join(", "))
    })
}

impl GpuSpec {
    /// The first that runs the PTX for a target.
    pub fn of_target(target: &str) -> Option<&'static GpuSpec> {
        const KNOWN: &[GpuSpec] = &GPUS;
        KNOWN.iter().find(|gpu| gpu.target == target)
    }

    /// Bytes a second that a read-only stream should reach.
    pub fn stream(&self) -> f64 {
        STREAM * self.bandwidth
    }

    /// Seconds that a launch takes at the least: of its bytes at the rate of a stream and its operations at that of the
    /// tensor cores, those of which there are more.
    pub fn seconds(&self, floor: Floor) -> f64 {
        self.memory_seconds(floor).max(floor.flops as f64 / self.rate)
    }

    /// Seconds that a launch or an exchange takes at the least, the time on the links included.
    pub fn seconds_of(&self, cost: &LaunchCost) -> f64 {
        self.seconds(cost.floor).max(cost.peers as f64 / self.link)
    }

    /// Whether bytes take longer than operations.
    pub fn is_bound_by_memory(&self, floor: Floor) -> bool {
        self.memory_seconds(floor) >= floor.flops as f64 / self.rate
    }

    fn memory_seconds(&self, floor: Floor) -> f64 {
        floor.bytes as f64 / self.stream()
    }

    /// Blocks of decode attention that a multiprocessor holds, by the registers on record for its PTX and by shared memory;
    /// 1 for a kernel that is not on record.
    pub fn attention_blocks(&self, launch: DecodeLaunch, dtype: DType) -> u32 {
        let kernel = element_type(dtype).ok().map(|element| launch.descriptor(element).name);
        let used = kernel.and_then(|kernel| resources(self.target, kernel));
        let LaunchShape { threads, shared, .. } = launch.shape();
        used.map_or(1, |used| used.occupancy(threads[0], shared, self.limits).blocks.max(1))
    }

    /// What floors were computed with.
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
    fn a_multiprocessor_holds_the_blocks_of_decode_attention_that_the_kernel_was_made_for() {
        let blocks = |gpu: &str, heads, kv_heads, size| {
            let launch = DecodeLaunch::new(AttentionShape::new(heads, kv_heads, size, 16).unwrap(), 1);
            named(gpu).unwrap().attention_blocks(launch, DType::F16)
        };
        assert_eq!([32, 64, 80, 96, 128, 256].map(|size| blocks("H200", 32, 32, size)), [4, 3, 3, 3, 3, 3]);
        // Eight heads' partial results beside the rings, and smaller shared memory.
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
