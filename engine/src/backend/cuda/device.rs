//! Opening and checking a GPU, and loading the kernels that a model needs.

use super::gpu;
use cuda_std::launch::{Descriptor, Family, Kernel, KernelCall, LaunchShape};
use kernels::attention::decode::{DecodeLaunch, paged_attention, paged_attention_capped, plan_paged_attention};
use kernels::attention::prefill::{
    hopper::paged_prefill_hopper, paged_latent_attention, paged_prefill, paged_prefill_capped,
};
use kernels::attention::{AttentionShape, paper};
use kernels::element::ElementType;
use kernels::experts::{
    coded::grouped_quantised, combine::combine_experts, group::group_by_expert, hopper::grouped_hopper,
    product::grouped_product, route::route,
};
use kernels::gemm::{
    decode::gemm_decode, gemv::gemv, hopper::decode::gemm_hopper_decode, hopper::gemm_hopper, prefill::gemm,
    quantised::gemm_quantised,
};
use kernels::recurrent::{
    chunked::{pass::pass_chunks, prepare::prepare_chunks},
    convolution::causal_convolution,
    heads::recur_heads,
};
use kernels::{cache, communicator, embedding, kv_element, latent, norm, rope, sampling, scaling};
use launch::{Context, Driver, Module, Stream};

use super::ptx::{self, Image};
use crate::error::{Error, Result};
use crate::options::{AttentionKernels, Options};

/// A GPU or an emulated one.
#[derive(Debug)]
pub struct CudaDevice {
    pub(super) context: Context,
    /// The stream of all computation.
    pub(super) stream: Stream,
    /// The stream for swapping blocks to and from host memory, concurrently with the computation.
    pub(super) transfers: Stream,
    /// The engine's kernels.
    pub(super) module: Module,
    /// The paper's kernels, if they are used for attention.
    paper: Option<Module>,
}

/// The kernels that a model needs.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The type of activations.
    pub element: ElementType,
    /// The heads of all layers.
    pub heads: &'a [AttentionShape],
    /// Whether some weights are quantised.
    pub is_quantised: bool,
    /// Whether some layers have experts.
    pub has_experts: bool,
    /// Whether some layers keep a state.
    pub has_states: bool,
}

impl CudaDevice {
    /// Opens GPU number `ordinal` and loads the kernels for a model. Uses the options for attention kernels and for
    /// dependent launches.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no driver, no such GPU, or either is too old.
    pub fn open(driver: &'static Driver, ordinal: u32, options: &Options, wanted: Wanted<'_>) -> Result<Self> {
        let Wanted { element, heads, .. } = wanted;
        let context = Context::new(driver, ordinal).map_err(|error| Error::Device(error.to_string()))?;
        let (image, version) = (image(&context)?, launch::cust::CudaApiVersion::get());
        let version =
            version.map_err(|error| Error::Device(format!("the driver does not report its version: {error}")))?;
        let ptx = image.engine();
        check_version(ptx, (version.major(), version.minor()))?;
        let wanted = kernels(wanted, image.arch);
        let load = |ptx: &str, wanted: &[&'static Descriptor]| {
            let module = Module::load(&context, ptx, wanted)?;
            Ok::<_, launch::Error>(if options.dependent_launches { module } else { module.in_order() })
        };
        let module = load(ptx, &wanted).map_err(gpu)?;
        let paper = match options.attention {
            AttentionKernels::Quire => None,
            AttentionKernels::V1 | AttentionKernels::V2 => {
                Some(load(image.paper(), &paper_kernels(element, heads)).map_err(gpu)?)
            }
        };
        Ok(CudaDevice {
            stream: context.stream().map_err(gpu)?,
            transfers: context.stream().map_err(gpu)?,
            module,
            paper,
            context,
        })
    }

    /// Queues a kernel in the stream.
    ///
    /// # Safety
    /// The kernel's contract must hold until it has run.
    ///
    /// # Errors
    /// See [`Module::launch`].
    pub(super) unsafe fn launch(&self, shape: LaunchShape, call: KernelCall) -> launch::Result<()> {
        let paper = self.paper.as_ref().filter(|paper| paper.has(call.descriptor()));
        // SAFETY: the caller ensures that the kernel's contract holds until it has run.
        unsafe { paper.unwrap_or(&self.module).launch(&self.stream, shape, call) }
    }
}

/// Selects the PTX for a device.
fn image(context: &Context) -> Result<Image> {
    let (major, minor) = context.limits().capability;
    ptx::for_capability(major, minor).ok_or_else(|| {
        Error::Device(format!(
            "{} has compute capability {major}.{minor}, but the kernels need 8.0 (Ampere) or later",
            context.name()
        ))
    })
}

/// Refuses a driver that is too old for the PTX. `driver` is the version of CUDA that it supports.
fn check_version(ptx: &str, driver: (i32, i32)) -> Result<()> {
    let (isa, needed) = ptx::version(ptx);
    if driver < needed {
        return Err(Error::Device(format!(
            "the NVIDIA driver supports CUDA {}.{}, but the kernels are PTX {isa} and need a driver for CUDA {}.{} or later",
            driver.0, driver.1, needed.0, needed.1
        )));
    }
    Ok(())
}

/// Returns the instances of a kernel whose types and constants begin with `labels`.
fn instances<F: Family>(labels: &[&str]) -> impl Iterator<Item = &'static Descriptor> {
    F::INSTANCES.iter().copied().filter(|entry| entry.labels.starts_with(labels))
}

/// Returns the paper's kernels for a model with these heads.
fn paper_kernels(element: ElementType, heads: &[AttentionShape]) -> Vec<&'static Descriptor> {
    let typed = [element.label()];
    let mut kernels: Vec<_> = instances::<paper::paged_attention_v2_reduce>(&typed)
        .chain(instances::<paper::paper_rope_and_cache>(&typed))
        .collect();
    for shape in of_sizes(heads) {
        let (size, block) = (shape.head_size().to_string(), shape.pages().block_size.to_string());
        let sized = [element.label(), size.as_str(), block.as_str()];
        kernels.extend(instances::<paper::paged_attention_v1>(&sized));
        kernels.extend(instances::<paper::paged_attention_v2>(&sized));
    }
    kernels
}

/// Returns the kernel of a launch of decode attention.
pub(super) fn decode_kernel(launch: DecodeLaunch, element: ElementType) -> &'static Descriptor {
    let shape = launch.attention();
    if !shape.is_capped() {
        return launch.descriptor(element);
    }
    let size = shape.head_size().to_string();
    let headed = [kv_element::label(element, shape.pages().format), size.as_str()];
    instances::<paged_attention_capped>(&headed).next().unwrap_or_else(|| unreachable!("a capped shape has kernels"))
}

/// Returns one shape for each head size.
fn of_sizes(heads: &[AttentionShape]) -> Vec<AttentionShape> {
    let mut sizes: Vec<AttentionShape> = Vec::new();
    for &shape in heads {
        if !sizes.iter().any(|other| other.head_size() == shape.head_size()) {
            sizes.push(shape);
        }
    }
    sizes
}

/// Returns the attention kernels for layers with these heads. All layers have a softcap, or none does.
fn attention_kernels(element: ElementType, heads: &[AttentionShape]) -> Vec<&'static Descriptor> {
    let mut kernels = Vec::new();
    for shape in of_sizes(heads) {
        let size = shape.head_size().to_string();
        let headed = [kv_element::label(element, shape.pages().format), size.as_str()];
        if shape.is_latent() {
            kernels.extend(instances::<paged_latent_attention>(&headed));
            kernels.extend(instances::<latent::multiply_heads>(&[element.label()]));
            kernels.push(&latent::join_latents::DESCRIPTOR);
            continue;
        }
        if shape.is_capped() {
            kernels.extend(instances::<paged_attention_capped>(&headed));
            kernels.extend(instances::<paged_prefill_capped>(&headed));
            continue;
        }
        kernels.extend(instances::<paged_attention>(&headed));
        kernels.extend(instances::<paged_prefill>(&headed));
        kernels.extend(instances::<paged_prefill_hopper>(&headed));
    }
    kernels
}

/// Returns the kernels for layers with experts.
fn expert_kernels(element: ElementType, is_quantised: bool) -> Vec<&'static Descriptor> {
    let typed = [element.label()];
    let coded = instances::<grouped_quantised>(&typed).filter(|_| is_quantised);
    [&route::DESCRIPTOR, &group_by_expert::DESCRIPTOR]
        .into_iter()
        .chain(instances::<grouped_product>(&typed))
        .chain(instances::<grouped_hopper>(&typed))
        .chain(instances::<combine_experts>(&typed))
        .chain(coded)
        .collect()
}

/// Returns the kernels for layers that keep a state.
fn state_kernels(element: ElementType) -> Vec<&'static Descriptor> {
    let typed = [element.label()];
    instances::<causal_convolution>(&typed)
        .chain(instances::<recur_heads>(&typed))
        .chain(instances::<prepare_chunks>(&typed))
        .chain(instances::<pass_chunks>(&typed))
        .chain(instances::<norm::rms_norm_gated>(&typed))
        .collect()
}

/// Returns the kernels that a model may launch on a target.
fn kernels(wanted: Wanted<'_>, target: &str) -> Vec<&'static Descriptor> {
    let Wanted { element, heads, is_quantised, has_experts, has_states } = wanted;
    let typed = [element.label()];
    let experts = if has_experts { expert_kernels(element, is_quantised) } else { Vec::new() };
    let states = if has_states { state_kernels(element) } else { Vec::new() };
    let cached: Vec<_> = heads.iter().map(|shape| kv_element::label(element, shape.pages().format)).take(1).collect();
    [
        &cache::reshape_and_cache::DESCRIPTOR,
        &cache::copy_blocks::DESCRIPTOR,
        &cache::swap_blocks_out::DESCRIPTOR,
        &cache::swap_blocks_in::DESCRIPTOR,
        &communicator::gather_logits::DESCRIPTOR,
        &plan_paged_attention::DESCRIPTOR,
        &embedding::gather_rows::DESCRIPTOR,
        &sampling::sample::DESCRIPTOR,
        &scaling::scale_logits::DESCRIPTOR,
    ]
    .into_iter()
    .chain(attention_kernels(element, heads))
    .chain(experts)
    .chain(states)
    .chain(instances::<gemm_quantised>(&typed).filter(|_| is_quantised))
    .chain(instances::<gemm>(&typed))
    .chain(instances::<gemm_hopper>(&typed))
    .chain(instances::<gemm_hopper_decode>(&typed))
    .chain(instances::<gemm_decode>(&typed))
    .chain(instances::<gemv>(&typed))
    .chain(instances::<communicator::all_reduce>(&typed))
    .chain(instances::<embedding::embed>(&typed))
    .chain(instances::<embedding::embed_part>(&typed))
    .chain(instances::<embedding::add_positions>(&typed))
    .chain(instances::<norm::layer_norm>(&typed))
    .chain(instances::<norm::rms_norm>(&typed))
    .chain(instances::<norm::rms_norm_part>(&typed))
    .chain(instances::<norm::row_squares>(&typed))
    .chain(instances::<norm::rms_norm_divided>(&typed))
    .chain(instances::<scaling::scale_rows>(&typed))
    .chain(instances::<scaling::add_rows>(&typed))
    .chain(instances::<scaling::multiply_columns>(&typed))
    .chain(instances::<rope::rope_and_cache>(&cached))
    .chain(instances::<rope::general_rope_and_cache>(&cached))
    .filter(|kernel| kernel.is_for(target))
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use kernels::layout::KvFormat;

    use super::*;

    #[test]
    fn an_old_driver_is_refused_with_the_versions() {
        let error = check_version(ptx::SM_90A.engine(), (11, 8)).unwrap_err().to_string();
        assert!(error.contains("CUDA 11.8") && error.contains("PTX 8.0") && error.contains("CUDA 12.0"), "{error}");
        assert!(check_version(ptx::SM_90A.engine(), (12, 0)).is_ok());
        assert!(check_version(ptx::SM_80.engine(), (11, 0)).is_ok());
    }

    #[test]
    fn only_kernels_of_the_models_type_and_heads_are_loaded() {
        let names = |target| -> Vec<_> {
            let heads = AttentionShape::new(8, 2, 64, 16).unwrap();
            let wanted = Wanted {
                element: ElementType::Bf16,
                heads: &[heads],
                is_quantised: false,
                has_experts: false,
                has_states: false,
            };
            kernels(wanted, target).iter().map(|kernel| kernel.name).collect()
        };
        assert!(names("sm_90a").contains(&"gemm_hopper_bf16_256"));
        assert!(names("sm_90a").contains(&"gemm_hopper_decode_bf16_64"));
        let names = names("sm_80");
        assert!(names.contains(&"paged_prefill_bf16_64") && names.contains(&"gemm_bf16_256"));
        assert!(!names.iter().any(|name| name.contains("_f16")
            || name.contains("hopper")
            || name.contains("int8")
            || name.starts_with("paged_prefill_bf16_128")));
    }

    #[test]
    fn kernels_are_loaded_for_every_head_size_and_for_the_softcap() {
        let heads = |size| AttentionShape::new(8, 2, size, 16).unwrap();
        let attention = |heads: &[AttentionShape]| -> Vec<_> {
            let kernels = attention_kernels(ElementType::F16, heads);
            let names = kernels.iter().map(|kernel| kernel.name).filter(|name| !name.contains("hopper"));
            names.filter(|name| name.starts_with("paged_prefill")).collect()
        };
        assert_eq!(attention(&[heads(32), heads(64), heads(32)]), ["paged_prefill_f16_32", "paged_prefill_f16_64"]);
        let capped = heads(128).with_softcap().unwrap();
        assert_eq!(attention(&[capped]), ["paged_prefill_capped_f16_128"]);
        let name = |shape| decode_kernel(DecodeLaunch::new(shape, 1), ElementType::F16).name;
        assert_eq!([capped, heads(64)].map(name), ["paged_attention_capped_f16_128_8", "paged_attention_f16_64_8"]);
        let coded = capped.with_format(KvFormat::Fp8);
        assert_eq!(attention(&[coded]), ["paged_prefill_capped_f16fp8_128"]);
        assert_eq!(name(coded), "paged_attention_capped_f16fp8_128_8");
    }
}
