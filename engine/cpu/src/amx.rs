//! Products of matrix tiles with AMX, on the processors that have it.
//!
//! A tile is a register of sixteen rows of 64 bytes. One instruction multiplies two tiles. It combines each row of the
//! first tile (activations) with sixteen columns of the second (the weight), over 32 numbers of 16 bits or 64 of 8
//! bits. A row's sum therefore does not depend on the other rows of its tile.
//!
//! The instructions are written in assembly because stable Rust has no intrinsics for them.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::pages::Line;
use super::panels::PANEL;

/// Rows of a tile. Each row belongs to one token, or to one term of a token's activations (see `terms`).
pub(super) const ROWS: usize = 16;
/// Columns of `K` that one instruction multiplies, for 16-bit elements.
pub(super) const DEPTH: usize = 32;

/// Proof that the processor has AMX for bf16 and for bytes, and that the system lets this process use it.
#[derive(Clone, Copy)]
pub(super) struct Amx(());

/// Proof that this thread's tile registers are configured. It cannot move to another thread.
pub(super) struct Tiles(PhantomData<*const ()>);

/// Sums of sixteen rows for the columns of a panel.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Sums(pub [[f32; PANEL]; ROWS]);

/// Sums of products of bytes for sixteen rows and sixteen columns.
#[repr(C, align(64))]
pub(super) struct ByteSums(pub [[i32; 16]; ROWS]);

/// The shapes of the eight tiles: from byte 16 the bytes per row, as two bytes each, and from byte 48 the number of
/// rows.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    // Tiles 0 to 3 are sums. For 16 bits, tile 4 is activations and tile 5 the weight. For 8 bits, tile 6 is
    // activations and tile 7 the weight.
    let all: [(u8, u8); 8] = [(16, 64), (16, 64), (16, 64), (16, 64), (16, 64), (16, 64), (16, 32), (8, 64)];
    let mut tile = 0;
    while tile < all.len() {
        (shapes[48 + tile], shapes[16 + 2 * tile]) = all[tile];
        tile += 1;
    }
    Shapes(shapes)
};

thread_local! {
    /// The number of [`Tiles`] values on this thread.
    static USERS: Cell<usize> = const { Cell::new(0) };
}

impl Amx {
    /// Returns `None` if the processor lacks AMX or the system does not permit it.
    pub fn new() -> Option<Self> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        USABLE.get_or_init(|| has_instructions() && is_permitted()).then_some(Amx(()))
    }

    /// Configures this thread's tile registers until the returned value is dropped.
    pub fn tiles(self) -> Tiles {
        if USERS.replace(USERS.get() + 1) == 0 {
            // SAFETY: `self` proves that the instruction may be used. It reads the 64 bytes of `SHAPES`, which are a
            // valid tile configuration.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) };
        }
        Tiles(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if USERS.replace(USERS.get() - 1) == 1 {
            // SAFETY: the tiles were configured on this thread, and this was the last value that relies on them.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}

impl Tiles {
    /// Computes `sums[r] += rows[r] . words` over bf16 elements, in order of chunks of [`DEPTH`] columns of `K`. If
    /// `first` is set, the sums start at zero instead.
    ///
    /// `rows` has `count` lines per chunk. Every load reads sixteen lines, so after the last chunk's start there must
    /// be sixteen lines too. Sums of rows from `count` on are unspecified. `words` has sixteen times [`PANEL`] pairs
    /// per chunk.
    ///
    /// Within a chunk, the instruction adds up the products of even columns and of odd columns separately, then adds
    /// both to the sum. Denormal numbers count as zeros.
    ///
    /// # Panics
    /// If `rows` or `words` are too short.
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
        // SAFETY: `self` proves that the tiles are configured. The tiles of sums cover exactly `sums`. The assertion
        // above shows that `rows` and `words` are as long as the loop reads.
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
    /// Computes `sums[r][c] = rows[r] . column c` over 32 signed bytes. Line `i` contains bytes `4 i` to `4 i + 3` of
    /// each of the sixteen columns.
    #[inline(always)]
    pub fn multiply_bytes(&self, rows: &[[i32; 8]; ROWS], lines: &[Line; 8], sums: &mut ByteSums) {
        // SAFETY: `self` proves that the tiles are configured. With the strides given, they cover exactly `rows`,
        // `lines` and `sums`.
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

/// Whether the processor has tiles and multiplies them as bf16 and as bytes.
fn has_instructions() -> bool {
    const BF16_TILES_AND_BYTES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let has_leaf = std::arch::x86_64::__cpuid(0).eax >= 7;
    has_leaf && std::arch::x86_64::__cpuid_count(7, 0).edx & BF16_TILES_AND_BYTES == BF16_TILES_AND_BYTES
}

/// Asks the system for permission to use tiles. It saves their state on a thread switch only for processes that have
/// asked.
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
