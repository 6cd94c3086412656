//! Launches kernels, on the machine's GPU or in the emulator.
//!
//! The host side uses `cust`, which calls the CUDA driver API. This crate defines the functions of that API itself.
//! Each forwards to the libcuda of the chosen [`Driver`]: the machine's, which is loaded when it is chosen, or the
//! emulator's. One binary therefore starts and works with and without a GPU, and tests exercise the whole path through
//! `cust`.
//!
//! Launches take the structs that `#[kernel]` generates. Arguments are given by name, and the compiler checks their
//! types. The PTX is compared with the declarations when it is loaded. The launch shape is checked against the device
//! and the kernel.
//!
//! ```
//! use cuda_std::launch::{Kernel, LaunchShape};
//! use launch::{Context, DeviceBuffer, Driver, Module};
//!
//! mod device {
//!     use cuda_std::prelude::*;
//!
//!     /// Multiplies `n` numbers by `by`.
//!     ///
//!     /// # Safety
//!     /// `x` has `n` elements.
//!     #[kernel(max_threads = 256)]
//!     pub unsafe fn scale(x: *mut f32, by: f32, n: u32) {
//!         let i = thread::index_1d();
//!         if i < n {
//!             // SAFETY: `i` is below `n`.
//!             unsafe { *x.add(i as usize) *= by };
//!         }
//!     }
//! }
//! use device::scale;
//!
//! # // The PTX that the compiler generates, shortened.
//! # const PTX: &str = ".version 7.0
//! # .target sm_80
//! # .address_size 64
//! # .visible .entry scale(.param .u64 x, .param .f32 by, .param .u32 n) .maxntid 256
//! # {
//! #     .reg .pred %p1; .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<3>;
//! #     mov.u32 %r1, %tid.x; ld.param.u32 %r2, [n]; setp.ge.u32 %p1, %r1, %r2; @%p1 ret;
//! #     ld.param.u64 %rd1, [x]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; ld.param.f32 %f1, [by];
//! #     ld.global.f32 %f2, [%rd1]; mul.f32 %f2, %f2, %f1; st.global.f32 [%rd1], %f2; ret;
//! # }";
//! let context = Context::new(Driver::emulator()?, 0)?;
//! let module = Module::load(&context, PTX, &[&scale::DESCRIPTOR])?;
//! let stream = context.stream()?;
//! let x = DeviceBuffer::from_slice(&stream, &[1.0f32, 2.0, 3.0])?;
//! // SAFETY: `x` has three elements.
//! unsafe { module.launch(&stream, LaunchShape::covering(3, 256), scale { x: x.as_mut_ptr(), by: 2.0, n: 3 }) }?;
//! assert_eq!(x.to_vec(&stream)?, [2.0, 4.0, 6.0]);
//! # Ok::<(), launch::Error>(())
//! ```

mod attributes;
mod buffer;
mod code;
mod context;
mod copies;
mod driver;
mod error;
mod event;
mod graph;
mod mapped;
mod module;
mod peers;
mod pinned;
mod ptx;
mod slice;
mod stream;
mod tensor;

pub use buffer::DeviceBuffer;
pub use code::Code;
pub use context::{Context, DeviceLimits};
pub use cust;
pub use driver::Driver;
pub use error::{Error, Result};
pub use event::Event;
pub use graph::Graph;
pub use mapped::MappedBuffer;
pub use module::Module;
pub use pinned::{PinnedBuffer, PinnedSlice};
pub use ptx::Ptx;
pub use slice::DeviceSlice;
pub use stream::Stream;
