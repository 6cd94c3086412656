//! The host's view of a kernel: what is needed to launch it, such that wrong arguments do not compile.
//!
//! `#[kernel] pub unsafe fn scale(x: *mut f32, by: f32, n: u32)` leaves a struct of its arguments beside the function,
//! `scale { x: DevicePtrMut<f32>, by: f32, n: u32 }`. A launch takes that struct, so arguments are given by name and
//! type, and their order cannot matter. A [`KernelCall`] is such a struct together with the entry that it is for; the
//! launch layer takes it with a [`LaunchShape`].
//!
//! | file | |
//! | --- | --- |
//! | `call` | [`Args`], [`Kernel`], [`Instance`]: what `#[kernel]` implements, and the [`KernelCall`] that is made of it |
//! | `descriptor` | [`Descriptor`]: the name, parameters and bounds of an entry in the PTX |
//! | `pointer` | [`DevicePtr`], [`DevicePtrMut`]: addresses in the device's memory |
//! | `tensor` | [`TensorTile`]: tensors whose tiles kernels copy |
//! | `shape` | [`LaunchShape`]: the grid, the threads of a block and its shared memory |

mod call;
mod descriptor;
mod pointer;
mod shape;
mod tensor;

pub use call::{Args, Const, Family, Instance, Kernel, KernelCall, MAX_PARAMS, MAX_TENSORS};
pub use descriptor::{Argument, Bounds, Descriptor, Param};
pub use pointer::{DevicePtr, DevicePtrMut};
pub use shape::LaunchShape;
pub use tensor::{TensorTile, TileDimension};
