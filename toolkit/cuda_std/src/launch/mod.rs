//! The host's view of a kernel. It has everything that a launch needs, and wrong arguments do not compile.
//!
//! `#[kernel] pub unsafe fn scale(x: *mut f32, by: f32, n: u32)` generates a struct of its arguments in addition to the
//! function: `scale { x: DevicePtrMut<f32>, by: f32, n: u32 }`. A launch takes this struct, so arguments have names and
//! types, and their order does not matter. A [`KernelCall`] combines the struct with the entry that it belongs to. The
//! launch layer takes a [`KernelCall`] and a [`LaunchShape`].
//!
//! | file | |
//! | --- | --- |
//! | `call` | [`Args`], [`Kernel`], [`Instance`]: traits that `#[kernel]` implements, and [`KernelCall`], which is made from them |
//! | `descriptor` | [`Descriptor`]: the name, parameters and bounds of an entry in the PTX |
//! | `pointer` | [`DevicePtr`], [`DevicePtrMut`]: addresses in the device's memory |
//! | `tensor` | [`TensorTile`]: tensors that kernels copy in tiles |
//! | `shape` | [`LaunchShape`]: the grid, the threads per block and the block's shared memory |

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
