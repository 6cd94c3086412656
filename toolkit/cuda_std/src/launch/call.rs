//! Kernels together with their arguments.

use core::fmt;

use super::{Descriptor, Param, TensorTile};

/// The maximum number of a kernel's parameters.
pub const MAX_PARAMS: usize = 24;

/// The maximum number of tensors among a kernel's parameters.
pub const MAX_TENSORS: usize = 3;

/// A kernel's arguments by name. `#[kernel]` generates such a struct from the kernel's parameters.
pub trait Args: Copy + 'static {
    /// The parameters in order.
    const PARAMS: &'static [Param];

    /// Returns the bits of each argument in order, zero-extended to 64 bits, and zeros for unused parameters. A tensor
    /// is represented by its index in [`tensors`](Self::tensors).
    fn bits(self) -> [u64; MAX_PARAMS];

    /// Returns the tensors among the arguments, in order.
    fn tensors(self) -> [Option<TensorTile>; MAX_TENSORS];
}

/// The arguments of a kernel with a single entry.
pub trait Kernel: Args {
    /// The entry's name, parameters and launch bounds.
    const DESCRIPTOR: Descriptor;
}

/// The arguments of a generic kernel that has an instance for the parameters `P`, a tuple of types and [`Const`]s such
/// as `(F16, Const<128>)`.
#[diagnostic::on_unimplemented(message = "the kernel `{Self}` has no instance for `{P}`")]
pub trait Instance<P>: Args {
    /// The entry's name, parameters and launch bounds.
    const DESCRIPTOR: Descriptor;
}

/// A number among the parameters of an [`Instance`].
#[derive(Debug)]
pub enum Const<const N: u32> {}

/// The arguments of a generic kernel, regardless of the instance to launch.
pub trait Family: Args {
    /// The entries of all instances.
    const INSTANCES: &'static [&'static Descriptor];
}

/// A kernel's entry and the arguments to launch it with.
#[derive(Clone, Copy)]
pub struct KernelCall {
    descriptor: &'static Descriptor,
    bits: [u64; MAX_PARAMS],
    tensors: [Option<TensorTile>; MAX_TENSORS],
}

impl KernelCall {
    /// Combines a kernel with its arguments.
    pub fn new<K: Kernel>(args: K) -> Self {
        Self { descriptor: &K::DESCRIPTOR, bits: args.bits(), tensors: args.tensors() }
    }

    /// Combines an instance of a generic kernel with its arguments.
    pub fn instance<A: Instance<P>, P>(args: A) -> Self {
        Self { descriptor: &A::DESCRIPTOR, bits: args.bits(), tensors: args.tensors() }
    }

    /// Returns the entry's name, parameters and launch bounds.
    pub const fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    /// Returns the bits of each argument in order. A parameter of fewer than 64 bits uses the first bytes of its
    /// number. A tensor is represented by its index in [`tensors`](Self::tensors).
    pub fn bits(&self) -> &[u64] {
        &self.bits[..self.descriptor.params.len()]
    }

    /// Returns the tensors among the arguments, in order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorTile> {
        self.tensors.iter().flatten()
    }
}

impl<K: Kernel> From<K> for KernelCall {
    fn from(args: K) -> Self {
        Self::new(args)
    }
}

impl fmt::Debug for KernelCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.descriptor.name)?;
        for (i, (param, bits)) in self.descriptor.params.iter().zip(self.bits()).enumerate() {
            write!(f, "{}{}: {bits:#x}", if i == 0 { "" } else { ", " }, param.name)?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::format;

    use super::*;
    use crate::half::{Bf16x2, F16x2, Half2};
    use crate::launch::{Bounds, DevicePtrMut, TileDimension};
    use crate::ptx::{pattern::TilePattern, tensor::CuTensorMap};

    #[crate::kernel(max_threads = 128, max_regs = 64)]
    /// Scales.
    unsafe fn scale(x: *mut f32, mut by: f32, n: u32) {
        by *= 2.0;
        let i = crate::thread::index_1d();
        if i < n {
            // SAFETY: never reached on the host.
            unsafe { *x.add(i as usize) *= by };
        }
    }

    #[test]
    fn a_kernel_has_a_descriptor_with_its_signature() {
        let Descriptor { name, params, bounds, labels, arch, dependent } = scale::DESCRIPTOR;
        assert_eq!((name, labels.len(), arch, dependent), ("scale", 0, None, false));
        assert_eq!(bounds, Bounds { max_threads: Some(128), min_blocks: None, max_regs: Some(64) });
        assert_eq!(params[0], Param { name: "x", ty: "*mut f32", size: 8 });
        assert_eq!(params[1], Param { name: "by", ty: "f32", size: 4 });
        assert_eq!(params[2], Param { name: "n", ty: "u32", size: 4 });
    }

    #[test]
    fn arguments_are_in_the_order_of_the_parameters() {
        let call = KernelCall::from(scale { n: 7, by: 1.5, x: DevicePtrMut::from_address(0x1000) });
        assert_eq!(call.bits(), [0x1000, u64::from(1.5f32.to_bits()), 7]);
        assert_eq!(format!("{call:?}"), "scale(x: 0x1000, by: 0x3fc00000, n: 0x7)");
    }

    /// Fills.
    #[crate::kernel(
        max_threads = 64,
        min_blocks = 5,
        instances(T = [F16x2, Bf16x2], D = [32, 64]),
        instances(min_blocks = 3, T = [F16x2], D = [96])
    )]
    unsafe fn fill<T: Half2, const D: u32>(out: *mut u32, n: u32) {
        if crate::thread::index_1d() < n {
            // SAFETY: never reached on the host.
            unsafe { *out = T::from_bits(D).to_bits() };
        }
    }

    #[test]
    fn a_generic_kernel_has_instances() {
        let labels: [&[&str]; 5] =
            [&["f16x2", "32"], &["f16x2", "64"], &["bf16x2", "32"], &["bf16x2", "64"], &["f16x2", "96"]];
        let found: [_; 5] = core::array::from_fn(|i| fill::INSTANCES[i].labels);
        assert_eq!((found, fill::INSTANCES.len()), (labels, 5));
        let args = fill { out: DevicePtrMut::NULL, n: 3 };
        let call = args.instance::<Bf16x2, 64>();
        assert_eq!(call.descriptor(), fill::INSTANCES[3]);
        assert_eq!(call.descriptor().name, "fill_bf16x2_64");
        assert_eq!(call.descriptor().bounds.max_threads, Some(64));
        assert_eq!(args.instance::<F16x2, 96>().descriptor().name, "fill_f16x2_96");
    }

    #[test]
    fn a_list_of_instances_may_override_the_bounds() {
        let bounds = |min_blocks| Bounds { max_threads: Some(64), min_blocks: Some(min_blocks), max_regs: None };
        assert!(fill::INSTANCES[..4].iter().all(|instance| instance.bounds == bounds(5)));
        assert_eq!(fill::INSTANCES[4].bounds, bounds(3), "bounds that the list omits are inherited from the kernel");
    }

    /// Copies.
    #[crate::kernel(arch = "sm_90a", dependent, max_threads = 32)]
    unsafe fn copy(from: &CuTensorMap, n: u32, to: &CuTensorMap) {
        let _ = (from, n, to);
    }

    #[test]
    fn tensors_are_tiles_on_the_host() {
        assert_eq!(copy::DESCRIPTOR.arch, Some("sm_90a"));
        assert!(copy::DESCRIPTOR.waits_in("sm_90a") && !copy::DESCRIPTOR.waits_in("sm_80"));
        assert!(!scale::DESCRIPTOR.waits_in("sm_90a"));
        assert_eq!(copy::DESCRIPTOR.params[2], Param { name: "to", ty: "&CuTensorMap", size: 128 });
        let row = |address| {
            let dimension = TileDimension { size: 100, stride: 2, tile: 64 };
            TensorTile::new(address, 2, TilePattern::Plain, [dimension])
        };
        let call = KernelCall::from(copy { to: row(0x2000), n: 7, from: row(0x1000) });
        assert_eq!(call.bits(), [0, 7, 1]);
        assert!(call.tensors().eq(&[row(0x1000), row(0x2000)]));
        assert_eq!(row(0).dimensions().len(), 1);
    }

    #[test]
    #[should_panic(expected = "device only")]
    fn calling_a_kernel_on_the_host_panics() {
        // SAFETY: it panics before it touches memory.
        unsafe { scale(core::ptr::null_mut(), 1.0, 1) }
    }
}
