//! Arithmetic that the hardware supports and Rust's `core` lacks: fast approximations, and fused multiply-add.

/// Device arithmetic for a floating-point type.
pub trait GpuFloat: Copy {
    /// Returns 2 to the power of `self`, within 2 ulp (`ex2.approx.ftz`, which flushes denormals to zero).
    fn exp2_fast(self) -> Self;
    /// Returns the approximate base-2 logarithm (`lg2.approx.ftz`).
    fn log2_fast(self) -> Self;
    /// Returns 1 over the square root, within about 2 ulp (`rsqrt.approx.ftz`).
    fn rsqrt_fast(self) -> Self;
    /// Returns 1 over `self`, within 1 ulp (`rcp.approx.ftz`).
    fn rcp_fast(self) -> Self;
    /// Returns the hyperbolic tangent, with a relative error of 2^-11 (`tanh.approx`).
    fn tanh_fast(self) -> Self;
    /// Returns the square root, correctly rounded (`sqrt.rn`).
    fn sqrt(self) -> Self;
    /// Returns `self * by + plus`, rounded once (`fma.rn`).
    fn mul_add(self, by: Self, plus: Self) -> Self;
}

/// Applies one instruction to one `f32`. It exchanges no data between lanes, so `pure` assembly is safe here.
macro_rules! unary {
    ($instruction:literal, $x:expr) => {
        device!(($x) => {
            let result: f32;
            // SAFETY: arithmetic on registers, without access to memory.
            unsafe {
                core::arch::asm!(
                    concat!($instruction, " {0}, {1};"),
                    out(reg32) result,
                    in(reg32) $x,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            result
        })
    };
}

impl GpuFloat for f32 {
    #[inline(always)]
    fn exp2_fast(self) -> f32 {
        unary!("ex2.approx.ftz.f32", self)
    }

    #[inline(always)]
    fn log2_fast(self) -> f32 {
        unary!("lg2.approx.ftz.f32", self)
    }

    #[inline(always)]
    fn rsqrt_fast(self) -> f32 {
        unary!("rsqrt.approx.ftz.f32", self)
    }

    #[inline(always)]
    fn rcp_fast(self) -> f32 {
        unary!("rcp.approx.ftz.f32", self)
    }

    #[inline(always)]
    fn tanh_fast(self) -> f32 {
        unary!("tanh.approx.f32", self)
    }

    #[inline(always)]
    fn sqrt(self) -> f32 {
        unary!("sqrt.rn.f32", self)
    }

    #[inline(always)]
    fn mul_add(self, by: f32, plus: f32) -> f32 {
        device!((self, by, plus) => {
            let result: f32;
            // SAFETY: arithmetic on registers, without access to memory.
            unsafe {
                core::arch::asm!(
                    "fma.rn.f32 {0}, {1}, {2}, {3};",
                    out(reg32) result,
                    in(reg32) self,
                    in(reg32) by,
                    in(reg32) plus,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            result
        })
    }
}
