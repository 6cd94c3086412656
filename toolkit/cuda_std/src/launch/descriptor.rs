//! What an entry of the PTX is called, takes and allows.

use crate::ptx::tensor::CuTensorMap;

/// A kernel's entry in the PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The name of the entry.
    pub name: &'static str,
    /// What an instance of a generic kernel was made with: the values of its parameters, in lower case, such as
    /// `["f16", "128"]`. Empty for a kernel without parameters.
    pub labels: &'static [&'static str],
    /// Its parameters in order.
    pub params: &'static [Param],
    /// What it was compiled for.
    pub bounds: Bounds,
    /// The one target that it exists for, as compilers name it; `None`: all.
    pub arch: Option<&'static str>,
    /// Whether it waits for the launches ahead where the target has such a wait, as [`waits_in`](Self::waits_in) says.
    pub dependent: bool,
}

impl Descriptor {
    /// Whether there is such a kernel in the PTX for a target.
    pub fn is_for(&self, target: &str) -> bool {
        self.arch.is_none_or(|only| only == target)
    }

    /// Whether its entry in the PTX for a target waits for the launches ahead before it accesses memory that they may write, so that it may be launched
    /// before they are over. Elsewhere it has to be launched behind them.
    pub fn waits_in(&self, target: &str) -> bool {
        self.dependent && target == "sm_90a"
    }
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the source.
    pub name: &'static str,
    /// Its type as written there.
    pub ty: &'static str,
    /// The size of the type in bytes, the same on host and device.
    pub size: usize,
}

impl Param {
    /// Describes a tensor: a map of it.
    pub const fn tensor(name: &'static str, ty: &'static str) -> Param {
        Param { name, ty, size: size_of::<CuTensorMap>() }
    }

    /// Whether it is a tensor.
    pub const fn is_tensor(&self) -> bool {
        self.size == size_of::<CuTensorMap>()
    }

    /// Describes a parameter of type `T`.
    pub const fn of<T: Argument>(name: &'static str, ty: &'static str) -> Param {
        Param { name, ty, size: size_of::<T>() }
    }
}

/// Limits that a kernel was compiled for: a launch that exceeds them fails. `None`: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Threads per block, at most.
    pub max_threads: Option<u32>,
    /// Blocks that are to fit on a multiprocessor at the same time.
    pub min_blocks: Option<u32>,
    /// Registers per thread, at most.
    pub max_regs: Option<u32>,
}

/// A type that may be a kernel's parameter: a number, or an address on the device.
///
/// # Safety
/// Its size, alignment and bits are the same on host and device, and it has no padding.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a kernel",
    label = "not a number of up to 64 bits or a pointer",
    note = "parameters are numbers, such as `u32` and `f32`, and pointers, such as `*const f32` and `*mut f32`"
)]
pub unsafe trait Argument: Copy + 'static {
    /// Its bits, with zeros above them.
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($ty:ty as $bits:ty)*) => {$(
        // SAFETY: a number, of the same bits on both sides.
        unsafe impl Argument for $ty {
            fn bits(self) -> u64 {
                u64::from(<$bits>::from_ne_bytes(self.to_ne_bytes()))
            }
        }
    )*};
}

numbers!(u8 as u8 i8 as u8 u16 as u16 i16 as u16 u32 as u32 i32 as u32 u64 as u64 i64 as u64 f32 as u32 f64 as u64);
