//! Descriptors of PTX entries: names, parameters and launch bounds.

use crate::ptx::tensor::CuTensorMap;

/// A kernel's entry in the PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The name of the entry.
    pub name: &'static str,
    /// The parameters of an instance of a generic kernel, in lower case, such as `["f16", "128"]`. Empty for a kernel
    /// that is not generic.
    pub labels: &'static [&'static str],
    /// The entry's parameters in order.
    pub params: &'static [Param],
    /// The launch bounds that the entry was compiled with.
    pub bounds: Bounds,
    /// The only target that has this entry, in the compiler's spelling. `None` means all targets.
    pub arch: Option<&'static str>,
    /// Whether the kernel waits for earlier launches on targets that support it. See [`waits_in`](Self::waits_in).
    pub dependent: bool,
}

impl Descriptor {
    /// Returns whether the PTX for `target` contains this kernel.
    pub fn is_for(&self, target: &str) -> bool {
        self.arch.is_none_or(|only| only == target)
    }

    /// Returns whether the entry in the PTX for `target` waits for earlier launches before it accesses memory that they
    /// may write. Then it may be launched before they finish. Otherwise the launch must be ordered after them.
    pub fn waits_in(&self, target: &str) -> bool {
        self.dependent && target == "sm_90a"
    }
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// The parameter's name in the source.
    pub name: &'static str,
    /// The parameter's type as written in the source.
    pub ty: &'static str,
    /// The size of the type in bytes, which is the same on host and device.
    pub size: usize,
}

impl Param {
    /// Describes a tensor parameter, which is passed as a tensor map.
    pub const fn tensor(name: &'static str, ty: &'static str) -> Param {
        Param { name, ty, size: size_of::<CuTensorMap>() }
    }

    /// Returns whether the parameter is a tensor.
    pub const fn is_tensor(&self) -> bool {
        self.size == size_of::<CuTensorMap>()
    }

    /// Describes a parameter of type `T`.
    pub const fn of<T: Argument>(name: &'static str, ty: &'static str) -> Param {
        Param { name, ty, size: size_of::<T>() }
    }
}

/// Limits that a kernel was compiled for. A launch that exceeds them fails. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of threads per block.
    pub max_threads: Option<u32>,
    /// The number of blocks that must fit on a multiprocessor at the same time.
    pub min_blocks: Option<u32>,
    /// The maximum number of registers per thread.
    pub max_regs: Option<u32>,
}

/// A type that can be a kernel's parameter: a number, or an address on the device.
///
/// # Safety
/// The type's size, alignment and bits are the same on host and device, and it has no padding.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a kernel",
    label = "not a number of up to 64 bits or a pointer",
    note = "parameters are numbers, such as `u32` and `f32`, and pointers, such as `*const f32` and `*mut f32`"
)]
pub unsafe trait Argument: Copy + 'static {
    /// Returns the bits, zero-extended to 64 bits.
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($ty:ty as $bits:ty)*) => {$(
        // SAFETY: a number has the same bits on host and device.
        unsafe impl Argument for $ty {
            fn bits(self) -> u64 {
                u64::from(<$bits>::from_ne_bytes(self.to_ne_bytes()))
            }
        }
    )*};
}

numbers!(u8 as u8 i8 as u8 u16 as u16 i16 as u16 u32 as u32 i32 as u32 u64 as u64 i64 as u64 f32 as u32 f64 as u64);
