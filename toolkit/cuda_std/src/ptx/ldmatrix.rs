//! `ldmatrix`: a warp loads 8 x 8 matrices of 16-bit elements from shared memory, laid out over its lanes as `mma`
//! takes them: lane `l` receives elements `2 * (l % 4)` and the next of row `l / 4`, or of that column when
//! transposed.
//!
//! The rows' addresses come from the lanes: those of matrix `m` from lanes `8 * m ..`. A row is 16 bytes. Collectives.
//!
//! The functions that take an offset in shared memory in place of a pointer need half the registers for it, and the
//! assembler folds its constant part into the instruction.

/// Two registers, as LLVM returns them.
#[cfg(target_arch = "nvptx64")]
#[repr(C)]
struct Two(u32, u32);

/// Four registers, as LLVM returns them.
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

/// One matrix; lanes 0 to 7 give its rows. `ldmatrix.sync.aligned.m8n8.x1.b16`
///
/// # Safety
/// All lanes of the warp call this together; the rows are in shared memory, valid and aligned to 16 bytes.
#[inline(always)]
pub unsafe fn load_x1(row: *const u8) -> u32 {
    // SAFETY: all lanes are here and the rows are valid, by this function's contract.
    device!((row) => unsafe { ldmatrix_x1(row) })
}

/// Two matrices; lanes 0 to 15 give their rows. `ldmatrix.sync.aligned.m8n8.x2.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x2(row: *const u8) -> [u32; 2] {
    device!((row) => {
        // SAFETY: all lanes are here and the rows are valid, by this function's contract.
        let Two(a, b) = unsafe { ldmatrix_x2(row) };
        [a, b]
    })
}

/// Four matrices; every lane gives a row. `ldmatrix.sync.aligned.m8n8.x4.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x4(row: *const u8) -> [u32; 4] {
    device!((row) => {
        // SAFETY: all lanes are here and the rows are valid, by this function's contract.
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
    // SAFETY: all lanes are here and the rows are valid, by this function's contract.
    device!((row) => unsafe { ldmatrix_x1_trans(row) })
}

/// [`load_x2`], each matrix transposed. `ldmatrix.sync.aligned.m8n8.x2.trans.b16`
///
/// # Safety
/// As for [`load_x1`].
#[inline(always)]
pub unsafe fn load_x2_trans(row: *const u8) -> [u32; 2] {
    device!((row) => {
        // SAFETY: all lanes are here and the rows are valid, by this function's contract.
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
        // SAFETY: all lanes are here and the rows are valid, by this function's contract.
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
        /// As for [`load_x1`]; `row` is an offset in shared memory.
        #[inline(always)]
        pub unsafe fn $name(row: u32) -> [u32; 4] {
            device!((row) => {
                let (a, b, c, d): (u32, u32, u32, u32);
                // SAFETY: all lanes are here and the rows are valid, by this function's contract. LLVM's intrinsic
                // takes a pointer of an address space that Rust cannot name.
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
    load_x4_at = "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "[`load_x4`] of rows at offsets.";
    load_x4_trans_at = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "[`load_x4_trans`] of rows at offsets.";
}
