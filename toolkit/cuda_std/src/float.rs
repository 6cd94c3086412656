//! Arithmetic that the hardware has and Rust's `core` has not: fast approximations, and fused multiply-add.

/// Device arithmetic of a floating-point type.
pub trait GpuFloat: Copy {
    /// 2 to the power of `self`, within 2 ulp (`ex2.approx.ftz`): denormals count as zero.
    fn exp2_fast(self) -> Self;
    /// The logarithm to base 2, approximate (`lg2.approx.ftz`).
    fn log2_fast(self) -> Self;
    /// 1 over the square root, within 2 ulp or so (`rsqrt.approx.ftz`).
    fn rsqrt_fast(self) -> Self;
    /// 1 over `self`, within 1 ulp (`rcp.approx.ftz`).
    fn rcp_fast(self) -> Self;
    /// The hyperbolic tangent, with a relative error of 2^-11 (`tanh.approx`).
    fn tanh_fast(self) -> Self;
    /// The square root, correctly rounded (`sqrt.rn`).
    fn sqrt(self) -> Self;
    /// `self * by + plus`, rounded once (`fma.rn`).
    fn mul_add(self, by: Self, plus: Self) -> Self;
}

/// A function of one `f32` by one instruction. No lane looks at another's, so that `pure` assembly is right here.
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
