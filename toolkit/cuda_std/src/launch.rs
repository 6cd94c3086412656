//! What the host knows of a kernel: enough to launch it with the right arguments, or not at all.
//!
//! `#[kernel] pub unsafe fn scale(x: *mut f32, by: f32, n: u32)` leaves a type `scale` beside the function, with
//! `<scale as Kernel>::Args = (*mut f32, f32, u32)` and a [`Descriptor`]. A launch that is generic over [`Kernel`] can
//! then be called with exactly those arguments, and pass them on as [`Args::addresses`] gives them.

use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;

/// A kernel, as the host sees it. `#[kernel]` implements it.
pub trait Kernel {
    /// The types of its arguments, as a tuple.
    type Args: Args;
    /// Its name, parameters and launch bounds.
    const DESCRIPTOR: Descriptor;
}

/// A kernel chosen at run time, among those that take the same arguments.
pub struct Entry<A: 'static> {
    descriptor: &'static Descriptor,
    args: PhantomData<fn(A)>,
}

impl<A: Args> Entry<A> {
    /// The entry of a kernel that is known.
    pub const fn of<K: Kernel<Args = A>>() -> Self {
        Self { descriptor: &K::DESCRIPTOR, args: PhantomData }
    }

    /// Its name, parameters and launch bounds.
    pub const fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }
}

// Derived, these would ask the same of the arguments.
impl<A> Clone for Entry<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Entry<A> {}
impl<A> fmt::Debug for Entry<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.descriptor.name)
    }
}

/// A generic kernel: `#[kernel(instances(...))]` implements it for the type of the kernel's name.
pub trait Family {
    /// The types of the arguments that every instance takes.
    type Args: Args;
    /// All there are.
    const INSTANCES: &'static [Instance<Self::Args>];

    /// The instance whose labels are these, such as `["f16", "128"]`.
    fn instance(labels: &[&str]) -> Option<Entry<Self::Args>> {
        Self::INSTANCES.iter().find(|instance| instance.labels == labels).map(|instance| instance.entry)
    }
}

/// One kernel of a [`Family`].
#[derive(Clone, Copy, Debug)]
pub struct Instance<A: 'static> {
    /// What it was made with: the values of the generic parameters, in lower case.
    pub labels: &'static [&'static str],
    /// What is launched.
    pub entry: Entry<A>,
}

impl<A: Args> Instance<A> {
    /// The instance with these labels.
    pub const fn of<K: Kernel<Args = A>>(labels: &'static [&'static str]) -> Self {
        Self { labels, entry: Entry::of::<K>() }
    }
}

/// A kernel's entry in the PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The name of the entry.
    pub name: &'static str,
    /// Its parameters in order.
    pub params: &'static [Param],
    /// What it was compiled for.
    pub bounds: Bounds,
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

/// A type that may be a kernel's parameter.
///
/// # Safety
/// Its size, alignment and bits are the same on host and device, and it has no padding.
pub unsafe trait Argument: Copy + 'static {}

macro_rules! arguments {
    ($($ty:ty)*) => {$(
        // SAFETY: a number, of the same bits on both sides; both have 64-bit addresses.
        unsafe impl Argument for $ty {}
    )*};
}

arguments!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

// SAFETY: an address. What it points to is for the kernel's contract to say.
unsafe impl<T: 'static> Argument for *const T {}
// SAFETY: as above.
unsafe impl<T: 'static> Argument for *mut T {}

/// The arguments of a launch: a tuple of [`Argument`]s.
pub trait Args: Copy + 'static {
    /// How many there are.
    const COUNT: usize;

    /// Calls `visit` with the address of each argument, in order: the array that `cuLaunchKernel` takes, which reads
    /// through the addresses before it returns.
    fn addresses(&mut self, visit: impl FnMut(*mut c_void));
}

macro_rules! args {
    ($($name:ident)*) => {
        impl<$($name: Argument),*> Args for ($($name,)*) {
            const COUNT: usize = 0 $(+ { let _ = size_of::<$name>(); 1 })*;

            #[allow(non_snake_case, unused_mut, unused_variables)]
            fn addresses(&mut self, mut visit: impl FnMut(*mut c_void)) {
                let ($($name,)*) = self;
                $(visit((&raw mut *$name).cast());)*
            }
        }
    };
}

args!();
args!(A);
args!(A B);
args!(A B C);
args!(A B C D);
args!(A B C D E);
args!(A B C D E F);
args!(A B C D E F G);
args!(A B C D E F G H);
args!(A B C D E F G H I);
args!(A B C D E F G H I J);
args!(A B C D E F G H I J K);
args!(A B C D E F G H I J K L);
args!(A B C D E F G H I J K L M);
args!(A B C D E F G H I J K L M N);
args!(A B C D E F G H I J K L M N O);
args!(A B C D E F G H I J K L M N O P);
args!(A B C D E F G H I J K L M N O P Q);
args!(A B C D E F G H I J K L M N O P Q R);
args!(A B C D E F G H I J K L M N O P Q R S);
args!(A B C D E F G H I J K L M N O P Q R S T);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::{Bf16x2, F16x2, Half2};

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
    fn a_kernel_leaves_its_signature() {
        let Descriptor { name, params, bounds } = scale::DESCRIPTOR;
        assert_eq!(name, "scale");
        assert_eq!(bounds, Bounds { max_threads: Some(128), min_blocks: None, max_regs: Some(64) });
        assert_eq!(params[0], Param { name: "x", ty: "*mut f32", size: 8 });
        assert_eq!(params[1], Param { name: "by", ty: "f32", size: 4 });
        assert_eq!(params[2], Param { name: "n", ty: "u32", size: 4 });
    }

    #[test]
    fn arguments_are_passed_by_address() {
        let mut args: <scale as Kernel>::Args = (core::ptr::null_mut(), 1.5, 7);
        let mut seen = [core::ptr::null_mut(); 3];
        let mut count = 0;
        args.addresses(|address| {
            seen[count] = address;
            count += 1;
        });
        assert_eq!(count, <<scale as Kernel>::Args as Args>::COUNT);
        // SAFETY: the addresses of `args`' own fields, in order.
        assert_eq!(unsafe { (*seen[1].cast::<f32>(), *seen[2].cast::<u32>()) }, (1.5, 7));
    }

    /// Fills.
    #[crate::kernel(max_threads = 64, instances(T = [F16x2, Bf16x2], D = [32, 64]))]
    unsafe fn fill<T: Half2, const D: u32>(out: *mut u32, n: u32) {
        if crate::thread::index_1d() < n {
            // SAFETY: never reached on the host.
            unsafe { *out = T::from_bits(D).to_bits() };
        }
    }

    #[test]
    fn a_generic_kernel_has_instances() {
        let labels: [&[&str]; 4] = [&["f16x2", "32"], &["f16x2", "64"], &["bf16x2", "32"], &["bf16x2", "64"]];
        let found: [_; 4] = core::array::from_fn(|i| fill::INSTANCES[i].labels);
        assert_eq!((found, fill::INSTANCES.len()), (labels, 4));
        let found = fill::instance(&["bf16x2", "64"]).map(|entry| *entry.descriptor());
        assert_eq!(found, Some(fill_bf16x2_64::DESCRIPTOR));
        assert_eq!(fill_bf16x2_64::DESCRIPTOR.name, "fill_bf16x2_64");
        assert_eq!(fill_bf16x2_64::DESCRIPTOR.bounds.max_threads, Some(64));
        assert!(fill::instance(&["bf16x2", "96"]).is_none());
    }

    #[test]
    #[should_panic(expected = "device only")]
    fn the_host_does_not_run_kernels() {
        // SAFETY: it panics before it touches memory.
        unsafe { scale(core::ptr::null_mut(), 1.0, 1) }
    }
}
