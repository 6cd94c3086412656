//! Addresses in the device's memory, as the host has them.

use core::fmt;
use core::marker::PhantomData;

use super::Argument;

/// The address of elements that a kernel reads: what `*const T` among its parameters is on the host.
///
/// The host can calculate with it and pass it on, and cannot read through it. It does not become the address of another
/// type, or one to write to, unless that is asked for explicitly ([`cast`](Self::cast)):
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

/// The address of elements that a kernel writes, or reads and writes: what `*mut T` among its parameters is on the
/// host.
pub struct DevicePtrMut<T> {
    address: u64,
    element: PhantomData<fn(T) -> T>,
}

macro_rules! pointers {
    ($name:ident) => {
        impl<T> $name<T> {
            /// The address 0: no elements.
            pub const NULL: Self = Self::from_address(0);

            /// The elements at this address of the device's memory. Nothing is checked about what is there.
            pub const fn from_address(address: u64) -> Self {
                Self { address, element: PhantomData }
            }

            /// The address as a number.
            pub const fn address(self) -> u64 {
                self.address
            }

            /// Whether this is [`NULL`](Self::NULL).
            pub const fn is_null(self) -> bool {
                self.address == 0
            }

            /// The same address as that of elements of another type.
            pub const fn cast<U>(self) -> $name<U> {
                $name::from_address(self.address)
            }

            /// The address of the element with this number.
            pub const fn offset(self, index: usize) -> Self {
                let bytes = (index as u64).wrapping_mul(size_of::<T>() as u64);
                Self::from_address(self.address.wrapping_add(bytes))
            }
        }

        // Derived, these would ask the same of the elements.
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

        // SAFETY: 64 bits on both sides, without padding.
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
    /// The same elements, to be read only.
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
    fn elements_are_counted_in_their_size() {
        let words = DevicePtrMut::<u32>::from_address(0x100);
        assert_eq!(words.offset(3).address(), 0x10c);
        assert_eq!(words.cast::<u64>().offset(1).address(), 0x108);
        assert_eq!(DevicePtr::from(words), DevicePtr::from_address(0x100));
        assert!(DevicePtr::<u8>::NULL.is_null() && !words.is_null());
    }
}
