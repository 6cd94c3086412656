//! AMX: products of tiles, on the processors that have it.
//!
//! A tile is a register of sixteen rows of 64 bytes. One instruction multiplies two of them: each row of the first, an
//! activation's, meets sixteen columns of the weight, of which it reads 32 numbers of 16 bits or 64 of 8 bits. So a sum of
//! a row is the same whatever is in the tile's other rows.
//!
//! The instructions are in assembly, since Rust has no stable functions for them.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::pages::Line;
use super::panels::PANEL;

/// Rows of a tile: as many sums of as many tokens, or terms of tokens, at a time.
pub(super) const ROWS: usize = 16;
/// Columns of `K` that meet in one instruction, of 16 bits.
pub(super) const DEPTH: usize = 32;

/// Shows that the processor has AMX for bf16 and for bytes, and that the system lets this process use it.
#[derive(Clone, Copy)]
pub(super) struct Amx(());

/// Shows that the tiles of this thread have their shapes. It stays on its thread.
pub(super) struct Tiles(PhantomData<*const ()>);

/// Sums of sixteen rows with the columns of a panel.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Sums(pub [[f32; PANEL]; ROWS]);

/// Sums of products of bytes, of sixteen rows and sixteen columns.
#[repr(C, align(64))]
pub(super) struct ByteSums(pub [[i32; 16]; ROWS]);

/// The shapes of the eight tiles: bytes of a row from 16 on, in two bytes each, and rows from 48 on.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    // Sums in 0 to 3; of 16 bits, activations in 4 and a weight in 5; of 8 bits, activations in 6 and a weight in 7.
    let all: [(u8, u8); 8] = [(16, 64), (16, 64), (16, 64), (16, 64), (16, 64), (16, 64), (16, 32), (8, 64)];
    let mut tile = 0;
    while tile < all.len() {
        (shapes[48 + tile], shapes[16 + 2 * tile]) = all[tile];
        tile += 1;
    }
    Shapes(shapes)
};

thread_local! {
    /// How many [`Tiles`] this thread has.
    static USERS: Cell<usize> = const { Cell::new(0) };
}

impl Amx {
    /// With `None` the processor does not have it, or the system does not permit it.
    pub fn new() -> Option<Self> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        USABLE.get_or_init(|| has_instructions() && is_permitted()).then_some(Amx(()))
    }

    /// Gives the tiles of this thread their shapes, until this is dropped.
    pub fn tiles(self) -> Tiles {
        if USERS.replace(USERS.get() + 1) == 0 {
            // SAFETY: this value shows that the instruction may be used. It reads the 64 bytes of `SHAPES`, which are a
            // valid description of tiles.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) };
        }
        Tiles(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if USERS.replace(USERS.get() - 1) == 1 {
            // SAFETY: the tiles were configured on this thread, and no other value says that they are.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}

impl Tiles {
    /// `sums[r] += rows[r] . words`: adds products of bf16 elements, in order of chunks of [`DEPTH`] columns of `K`. If it is
    /// the `first` time, sums begin with zero.
    ///
    /// `rows` has `count` lines for each chunk, and 16 more at the end, which are read and not used: the sums of rows from
    /// `count` on are anything. `words` has sixteen times [`PANEL`] pairs for each chunk.
    ///
    /// Of a chunk, the products of even columns are added to each other, and those of odd ones, and then both to the sum;
    /// denormal numbers count as zeros.
    ///
    /// # Panics
    /// If `rows` or `words` are shorter.
    #[inline]
    pub fn add_products(
        &self,
        chunks: usize,
        count: usize,
        rows: &[Line],
        words: &[u32],
        first: bool,
        sums: &mut Sums,
    ) {
        assert!(chunks > 0 && (chunks - 1) * count + ROWS <= rows.len() && chunks * (DEPTH / 2) * PANEL <= words.len());
        // SAFETY: tiles have their shapes, as this value shows. Those of the sums are all of `sums`. Of `rows` and `words`
        // there are as many as are read, as asserted.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {first}, {first}",
                "jnz 2f",
                "tileloadd tmm0, [{sums} + {stride}]",
                "tileloadd tmm1, [{sums} + {stride} + 64]",
                "tileloadd tmm2, [{sums} + {stride} + 128]",
                "tileloadd tmm3, [{sums} + {stride} + 192]",
                "2:",
                "tileloadd tmm4, [{rows} + {line}]",
                "tileloadd tmm5, [{words} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm5, [{words} + {stride} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm5",
                "tileloadd tmm5, [{words} + {stride} + 128]",
                "tdpbf16ps tmm2, tmm4, tmm5",
                "tileloadd tmm5, [{words} + {stride} + 192]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {rows}, {step}",
                "add {words}, 4096",
                "dec {chunks}",
                "jnz 2b",
                "tilestored [{sums} + {stride}], tmm0",
                "tilestored [{sums} + {stride} + 64], tmm1",
                "tilestored [{sums} + {stride} + 128], tmm2",
                "tilestored [{sums} + {stride} + 192], tmm3",
                sums = in(reg) &raw mut *sums,
                stride = in(reg) PANEL * size_of::<f32>(),
                line = in(reg) size_of::<Line>(),
                step = in(reg) count * size_of::<Line>(),
                rows = inout(reg) rows.as_ptr() => _,
                words = inout(reg) words.as_ptr() => _,
                chunks = inout(reg) chunks => _,
                first = in(reg) usize::from(first),
                options(nostack),
            );
        }
    }
}

impl Tiles {
    /// `sums[r][c] = rows[r] . column c`: products of 32 bytes with signs. A line has four bytes of each column, and then come
    /// the next four.
    #[inline(always)]
    pub fn multiply_bytes(&self, rows: &[[i32; 8]; ROWS], lines: &[Line; 8], sums: &mut ByteSums) {
        // SAFETY: tiles have their shapes, as this value shows, and with the strides of the arrays they are all of `rows`,
        // of `lines` and of `sums`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm6, [{rows} + {row}]",
                "tileloadd tmm7, [{lines} + {line}]",
                "tdpbssd tmm0, tmm6, tmm7",
                "tilestored [{sums} + {line}], tmm0",
                rows = in(reg) rows,
                row = in(reg) size_of::<[i32; 8]>(),
                lines = in(reg) lines,
                line = in(reg) size_of::<Line>(),
                sums = in(reg) sums,
                options(nostack),
            );
        }
    }
}

/// Whether the processor has tiles, and products of their bf16 elements and of their bytes.
fn has_instructions() -> bool {
    const BF16_TILES_AND_BYTES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let has_leaf = std::arch::x86_64::__cpuid(0).eax >= 7;
    has_leaf && std::arch::x86_64::__cpuid_count(7, 0).edx & BF16_TILES_AND_BYTES == BF16_TILES_AND_BYTES
}

/// Asks the system for the tiles' state, which it saves with a thread's other registers only for processes that have asked.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this call reads and writes no memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}
