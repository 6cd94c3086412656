//! Executes PTX on the CPU, checks it as it runs and counts what it would cost.
//!
//! A [`PtxModule`] is a parsed PTX text. An [`EmulatedDevice`] has memory and launches a module's kernels.
//!
//! A launch ends with a [`CostReport`], or with a [`Fault`] that says what is wrong with the kernel and where: kernel,
//! Rust line (if the PTX has `.loc`), PTX line, block, thread, address and buffer.
//!
//! ```
//! use emulator::{Arg, EmulatedDevice, PtxModule};
//!
//! let module = PtxModule::parse(
//!     ".version 8.0
//!      .target sm_80
//!      .address_size 64
//!      .visible .entry twice(.param .u64 data) {
//!          .reg .b32 %r<3>;
//!          .reg .b64 %rd<3>;
//!          ld.param.u64 %rd1, [data];
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %rd2, %r1, 4;
//!          add.u64 %rd1, %rd1, %rd2;
//!          ld.global.u32 %r2, [%rd1];
//!          add.u32 %r2, %r2, %r2;
//!          st.global.u32 [%rd1], %r2;
//!          ret;
//!      }",
//! )?;
//! let mut device = EmulatedDevice::new();
//! let data = device.alloc_from("data", &[1, 0, 0, 0, 2, 0, 0, 0]);
//! let report = device.launch(&module, "twice", [1; 3], [2, 1, 1], 0, &[Arg::Ptr(data)])?;
//! assert_eq!(device.read(data, 8)?, [2, 0, 0, 0, 4, 0, 0, 0]);
//! assert_eq!(report.total.sectors, 2);
//!
//! let fault = device.launch(&module, "twice", [1; 3], [3, 1, 1], 0, &[Arg::Ptr(data)]).unwrap_err();
//! assert!(fault.message.contains("4 bytes at offset 8 of `data`, which has 8 bytes"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A warp executes up to 32 lanes at a time. Lanes that diverge at a branch wait on a stack of masks and reconverge at
//! the immediate post-dominator.
//!
//! With seed 0, blocks run one after the other, and each warp runs until it waits. If all warps seem to wait for a
//! block that has not started, one more block becomes resident. With any other seed, several blocks are resident at
//! once, and their warps take turns of random length that also end at atomics. So the order in which threads arrive or
//! spin differs from seed to seed.
//!
//! Asynchronous copies and products end at the latest moment that the program allows, so that a missing wait shows.
//!
//! Vector clocks order the threads. Block barriers (including named ones), warp barriers and mbarriers order memory,
//! but shuffles and votes do not. Atomic, volatile and relaxed accesses do not race with each other. They order other
//! accesses only together with the fences, `.acquire` and `.release` around them, within their scope.
//!
//! Races are checked in shared memory, and in the global memory that a launch writes. Reads of global memory are not
//! recorded. A write that should wait for a read is found in any order that puts the write first.
//!
//! [`driver`] provides the functions of the CUDA driver API (libcuda) on top of this. It has streams, events, graphs,
//! and several devices that access each other's memory and wait for each other.
//!
//! The blocks of a cluster are resident together, and synchronise with each other as the warps of a block do.
//!
//! A read of unwritten shared memory is a fault. With [`LaunchOptions::poison`] it gives poison instead, and only the
//! use of poison is a fault. This is for kernels that read more than they need and then select it away.
//!
//! A kernel with an unsupported instruction is refused when it is launched or checked ([`PtxModule::check`]), with the
//! opcode and line. Other kernels of the module still run. The book's page `docs/src/forms.md` lists every form of PTX.
//!
//! Unsupported are textures, `im2col` and interleaved tensor maps, reductions by bulk copies, the tensor memory of
//! later GPUs, and forms of supported opcodes that no kernel has needed. Diverged lanes of a warp do not run in turns,
//! so none of them may wait for another.

#![allow(clippy::needless_range_loop, reason = "a lane is an index into several arrays at once")]

mod arg;
mod bits;
mod decode;
mod device;
mod dominators;
pub mod driver;
mod entry;
mod exec;
mod fault;
mod fork;
mod history;
mod host_bytes;
mod lanes;
mod launch_options;
mod launches;
mod memory;
mod module;
mod number;
mod ops;
mod parameter;
mod parts;
mod program;
mod ptx;
mod report;
mod tensor_map;
mod unfinished;
mod vectors;
mod window;

pub use arg::Arg;
pub use device::{EmulatedDevice, MemoryError};
pub use entry::Entry;
pub use fault::{Fault, FaultKind};
pub use launch_options::LaunchOptions;
pub use memory::DeviceAddress;
pub use module::PtxModule;
pub use parameter::Parameter;
pub use parts::{ORDERING, PtxParts, PtxPlace};
pub use ptx::ParseError;
pub use ptx::ast::LaunchBounds;
pub use report::{Class, CostReport, Counts, LineCounts};
pub use tensor_map::{Swizzle, TensorMap, TensorMapError};
