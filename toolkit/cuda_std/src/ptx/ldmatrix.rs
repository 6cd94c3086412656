//! `ldmatrix`: a warp loads 8 x 8 matrices of 16-bit elements from shared memory, in the layout over its lanes that
//! `mma` requires. Lane `l` receives elements `2 * (l % 4)` and the next one of row `l / 4`, or of that column if the
//! matrix is transposed.
//!
//! The lanes pass the rows' addresses: lanes `8 * m ..` pass the rows of matrix `m`. A row is 16 bytes. All functions
//! are collectives.
//!
//! Some functions take an offset in shared memory instead of a pointer. An offset needs half the registers, and the
//! assembler folds its constant part into the instruction.

/// Two registers, in the form that LLVM returns.
#[cfg(target_arch = "nvptx64")]
#[repr(C)]
struct Two(u32, u32);

/// Four registers, in the form that LLVM returns.
#[cfg(target_arch = "nvptx64")]
#[repr(C)]
struct Four(u32, u32, u32, u32);

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.b16.p0"]
    fn ldmatrix_x1(row: *const u8) -> u32;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.b16.p0"]
    fn ldmatrix_x2(row: *const u8) -> Two;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p0"]
    fn ldmatrix_x4(row: *const u8) -> Four;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.trans.b16.p0"]
    fn ldmatrix_x1_trans(row: *const u8) -> u32;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.trans.b16.p0"]
    fn ldmatrix_x2_trans(row: *const u8) -> Two;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16.p0"]
    fn ldmatrix_x4_trans(row: *const u8) -> Four;
}

/// Loads one matrix. Lanes 0 to 7 pass its rows. `ldmatrix.sync.aligned.m8n8.x1.b16`
///
/// # Safety
/// All lanes of the warp call this together. The rows are in shared memory, valid and aligned to 16 bytes.
#[inline(always)]
pub unsafe fn load_x1(row: *const u8) -> u32 {
    // SAFETY: this function's contract requires that all lanes call it together with valid rows.
    device!((row) => unsafe { ldmatrix_x1(row) })
}

/// Loads two matrices. Lanes 0 to 15 pass their rows. `ldmatrix.sync.aligned.m8n8.x2.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x2(row: *const u8) -> [u32; 2] {
    device!((row) => {
        // SAFETY: this function's contract requires that all lanes call it together with valid rows.
        let Two(a, b) = unsafe { ldmatrix_x2(row) };
        [a, b]
    })
}

/// Loads four matrices. Every lane passes a row. `ldmatrix.sync.aligned.m8n8.x4.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x4(row: *const u8) -> [u32; 4] {
    device!((row) => {
        // SAFETY: this function's contract requires that all lanes call it together with valid rows.
        let Four(a, b, c, d) = unsafe { ldmatrix_x4(row) };
        [a, b, c, d]
    })
}

/// [`load_x1`], transposed. `ldmatrix.sync.aligned.m8n8.x1.trans.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x1_trans(row: *const u8) -> u32 {
    // SAFETY: this function's contract requires that all lanes call it together with valid rows.
    device!((row) => unsafe { ldmatrix_x1_trans(row) })
}

/// [`load_x2`], each matrix transposed. `ldmatrix.sync.aligned.m8n8.x2.trans.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x2_trans(row: *const u8) -> [u32; 2] {
    device!((row) => {
        // SAFETY: this function's contract requires that all lanes call it together with valid rows.
        let Two(a, b) = unsafe { ldmatrix_x2_trans(row) };
        [a, b]
    })
}

/// [`load_x4`], each matrix transposed. `ldmatrix.sync.aligned.m8n8.x4.trans.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x4_trans(row: *const u8) -> [u32; 4] {
    device!((row) => {
        // SAFETY: this function's contract requires that all lanes call it together with valid rows.
        let Four(a, b, c, d) = unsafe { ldmatrix_x4_trans(row) };
        [a, b, c, d]
    })
}

macro_rules! at_offsets {
    ($($name:ident = $instruction:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", $instruction, "`")]
        ///
        /// # Safety
        /// As for [`load_x1`], and `row` is an offset in shared memory.
        #[inline(always)]
        pub unsafe fn $name(row: u32) -> [u32; 4] {
            device!((row) => {
                let (a, b, c, d): (u32, u32, u32, u32);
                // SAFETY: this function's contract requires that all lanes call it together with valid rows. This is
                // assembly because LLVM's intrinsic takes a pointer in an address space that Rust cannot express.
                unsafe {
                    core::arch::asm!(
                        concat!($instruction, " {{{0}, {1}, {2}, {3}}}, [{4}];"),
                        out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
                        in(reg32) row,
                        options(readonly, nostack, preserves_flags),
                    );
                }
                [a, b, c, d]
            })
        }
    )*};
}

at_offsets! {
    load_x4_at = "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "[`load_x4`] with rows given by offset.";
    load_x4_trans_at = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "[`load_x4_trans`] with rows given by offset.";
}
