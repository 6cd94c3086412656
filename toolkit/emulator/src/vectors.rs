//! Detection of the processor's vector extensions, and functions that are also compiled for the widest of them.

/// Returns whether the processor has all features that code for AVX2 uses.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt")
}

/// Returns whether the processor has all features that code for AVX-512 uses.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    use std::sync::LazyLock;
    // Checking every feature takes longer than the work that depends on it, so the result is cached.
    static HAS_ALL: LazyLock<bool> = LazyLock::new(|| {
        let is_wide = has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        is_wide && has_avx2()
    });
    *HAS_ALL
}

/// Compiles a function for AVX-512 as well, and calls that version if the processor has it.
///
/// This is for short loops over 32 lanes. A load can read the result of a store at once if both use vectors of the same
/// width.
macro_rules! widest {
    ($(#[$about:meta])* $visible:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block) => {
        $(#[$about])*
        #[inline(always)]
        $visible fn $name($($argument: $type),*) $(-> $output)? {
            #[inline(always)]
            fn any($($argument: $type),*) $(-> $output)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
            fn widest($($argument: $type),*) $(-> $output)? {
                any($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            if $crate::vectors::has_avx512() {
                // SAFETY: `has_avx512` has found every feature that the function is compiled for.
                return unsafe { widest($($argument),*) };
            }
            any($($argument),*)
        }
    };
}
pub(crate) use widest;
