//! Device memory addresses on the host.

use core::fmt;
use core::marker::PhantomData;

use super::Argument;

/// The address of elements that a kernel reads. A kernel's `*const T` parameter has this type on the host.
///
/// The host can compute with the address and pass it on, but cannot read through it. It converts to another element
/// type only explicitly ([`cast`](Self::cast)), and never implicitly to an address for writing:
///
/// ```compile_fail
/// # use cuda_std::launch::DevicePtr;
/// let floats: DevicePtr<f32> = DevicePtr::NULL;
/// let words: DevicePtr<u32> = floats;
/// ```
///
/// ```compile_fail
/// # use cuda_std::launch::{DevicePtr, DevicePtrMut};
/// let read: DevicePtr<f32> = DevicePtr::NULL;
/// let written: DevicePtrMut<f32> = read;
/// ```
pub struct DevicePtr<T> {
    address: u64,
    element: PhantomData<fn() -> T>,
}

/// The address of elements that a kernel writes, or reads and writes. A kernel's `*mut T` parameter has this type on
/// the host.
pub struct DevicePtrMut<T> {
    address: u64,
    element: PhantomData<fn(T) -> T>,
}

macro_rules! pointers {
    ($name:ident) => {
        impl<T> $name<T> {
            /// The null address.
            pub const NULL: Self = Self::from_address(0);

            /// Creates a pointer from an address in device memory, without any check.
            pub const fn from_address(address: u64) -> Self {
                Self { address, element: PhantomData }
            }

            /// Returns the address as a number.
            pub const fn address(self) -> u64 {
                self.address
            }

            /// Returns whether this is [`NULL`](Self::NULL).
            pub const fn is_null(self) -> bool {
                self.address == 0
            }

            /// Returns the same address with another element type.
            pub const fn cast<U>(self) -> $name<U> {
                $name::from_address(self.address)
            }

            /// Returns the address of the element at `index`.
            pub const fn offset(self, index: usize) -> Self {
                let bytes = (index as u64).wrapping_mul(size_of::<T>() as u64);
                Self::from_address(self.address.wrapping_add(bytes))
            }
        }

        // These impls are written by hand because `derive` would require the same traits of `T`.
        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}
        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.address)
            }
        }
        impl<T> PartialEq for $name<T> {
            fn eq(&self, other: &Self) -> bool {
                self.address == other.address
            }
        }
        impl<T> Eq for $name<T> {}

        // SAFETY: 64 bits on host and device, without padding.
        unsafe impl<T: 'static> Argument for $name<T> {
            fn bits(self) -> u64 {
                self.address
            }
        }
    };
}

pointers!(DevicePtr);
pointers!(DevicePtrMut);

impl<T> DevicePtrMut<T> {
    /// Converts to a read-only pointer to the same elements.
    pub const fn cast_const(self) -> DevicePtr<T> {
        DevicePtr::from_address(self.address)
    }
}

impl<T> From<DevicePtrMut<T>> for DevicePtr<T> {
    fn from(pointer: DevicePtrMut<T>) -> Self {
        pointer.cast_const()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_scaled_by_the_element_size() {
        let words = DevicePtrMut::<u32>::from_address(0x100);
        assert_eq!(words.offset(3).address(), 0x10c);
        assert_eq!(words.cast::<u64>().offset(1).address(), 0x108);
        assert_eq!(DevicePtr::from(words), DevicePtr::from_address(0x100));
        assert!(DevicePtr::<u8>::NULL.is_null() && !words.is_null());
    }
}
