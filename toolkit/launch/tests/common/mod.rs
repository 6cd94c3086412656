//! The device under test, and two small kernels.
//!
//! Tests run in the emulator unless the environment sets `QUIRE_TEST_DEVICE=cuda`.

#![allow(dead_code, reason = "not every test uses all of it")]

use cuda_std::launch::Kernel;
use launch::{Context, Driver, Module};

pub mod device {
    use cuda_std::prelude::*;

    /// Adds `by` to `n` numbers, in one block.
    ///
    /// # Safety
    /// `x` must have `n` elements.
    #[kernel(max_threads = 256)]
    pub unsafe fn add(x: *mut u32, by: u32, n: u32) {
        let i = thread::index_1d();
        if i < n {
            // SAFETY: `i` is below `n`.
            unsafe { *x.add(i as usize) += by };
        }
    }

    /// Passes `value` through the last word of `size` bytes of dynamic shared memory.
    ///
    /// # Safety
    /// The block must have `size` bytes of it, and `x` must have an element.
    #[kernel]
    pub unsafe fn through_shared(x: *mut u32, value: u32, size: u32) {
        // SAFETY: this body is never executed, because the tests have their own PTX.
        unsafe { *x = value + size };
    }
}

/// PTX for the kernels of [`device`], written by hand.
pub const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry add(.param .u64 x, .param .u32 by, .param .u32 n)
.maxntid 256
{
	.reg .pred %p1;
	.reg .b32 %r<5>;
	.reg .b64 %rd<3>;
	mov.u32 %r1, %tid.x;
	ld.param.u32 %r2, [n];
	setp.ge.u32 %p1, %r1, %r2;
	@%p1 ret;
	ld.param.u64 %rd1, [x];
	mul.wide.u32 %rd2, %r1, 4;
	add.u64 %rd1, %rd1, %rd2;
	ld.param.u32 %r3, [by];
	ld.global.u32 %r4, [%rd1];
	add.u32 %r4, %r4, %r3;
	st.global.u32 [%rd1], %r4;
	ret;
}
.visible .entry through_shared(.param .u64 x, .param .u32 value, .param .u32 size)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<2>;
	ld.param.u32 %r1, [value];
	ld.param.u32 %r2, [size];
	mov.u32 %r3, dynamic;
	add.u32 %r3, %r3, %r2;
	st.shared.u32 [%r3+-4], %r1;
	ld.shared.u32 %r2, [%r3+-4];
	ld.param.u64 %rd1, [x];
	st.global.u32 [%rd1], %r2;
	ret;
}
";

/// Creates a context on the device under test.
pub fn context() -> Context {
    let driver = Driver::under_test().unwrap_or_else(|e| panic!("{e}"));
    let context = Context::new(driver, 0).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(context.is_emulator(), driver.name() == "emulator");
    context
}

/// Loads the kernels of [`device`].
pub fn module(context: &Context) -> Module {
    Module::load(context, PTX, &[&device::add::DESCRIPTOR, &device::through_shared::DESCRIPTOR]).unwrap()
}
