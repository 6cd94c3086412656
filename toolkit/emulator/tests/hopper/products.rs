//! Products of a warp group.

use emulator::{Fault, FaultKind};
use half::{bf16, f16};

use crate::Run;

/// The layout of a factor in shared memory, in rows of eight 16-bit elements.
struct Layout {
    swizzle: u64,
    transposed: bool,
    leading: usize,
    stride: usize,
}

impl Layout {
    /// The matrix descriptor of a factor at an offset of shared memory.
    fn descriptor(&self, at: usize) -> u64 {
        let field = |value: usize| (value as u64 >> 4) & 0x3fff;
        field(at) | field(self.leading) << 16 | field(self.stride) << 32 | self.swizzle << 62
    }

    /// The byte offset of an element, by the canonical layouts of the PTX ISA.
    fn offset(&self, row: usize, k: usize) -> usize {
        let width = [1, 8, 4, 2][self.swizzle as usize];
        let at = match (self.swizzle, self.transposed) {
            (0, false) => row % 8 * 16 + row / 8 * self.stride + k % 8 * 2 + k / 8 * self.leading,
            (0, true) => row % 8 * 2 + row / 8 * self.stride + k % 8 * 16 + k / 8 * self.leading,
            (_, false) => row % 8 * width * 16 + row / 8 * self.stride + k * 2,
            (_, true) => {
                let across = row / 8;
                row % 8 * 2
                    + across % width * 16
                    + across / width * self.leading
                    + k % 8 * width * 16
                    + k / 8 * self.stride
            }
        };
        at ^ (at >> 7 & (width - 1)) << 4
    }
}

/// Computes a product of 64 rows and `columns` columns: `d = a b`, then the code `between`, and for 32-bit sums also `d
/// = -a b + d` and `d = a b + d`. In every case the result must be the exact `a b`. `parts` are the fence, the proxy
/// fence, the wait and `between`.
fn product(
    types: &str,
    a: Option<&Layout>,
    b: &Layout,
    columns: usize,
    parts: [&str; 4],
) -> Result<Vec<u32>, Box<Fault>> {
    let bf = types.ends_with("bf16");
    let bits =
        |value: i32| if bf { bf16::from_f32(value as f32).to_bits() } else { f16::from_f32(value as f32).to_bits() };
    let (of_a, of_b) = (
        |row: usize, k: usize| (row * 3 + k * 5) as i32 % 11 - 5,
        |column: usize, k: usize| (column * 7 + k) as i32 % 9 - 4,
    );
    let mut memory = vec![0u8; 32768];
    let start = 8192;
    for k in 0..16 {
        for row in 0..64 {
            if let Some(a) = a {
                memory[a.offset(row, k)..][..2].copy_from_slice(&bits(of_a(row, k)).to_le_bytes());
            }
        }
        for column in 0..columns {
            memory[start + b.offset(column, k)..][..2].copy_from_slice(&bits(of_b(column, k)).to_le_bytes());
        }
    }
    // Four words per thread follow, for a first factor in registers.
    let pair = |row, k| u32::from(bits(of_a(row, k))) | u32::from(bits(of_a(row, k + 1))) << 16;
    for thread in 0..128 {
        let (row, k) = (thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
        for word in [pair(row, k), pair(row + 8, k), pair(row, k + 8), pair(row + 8, k + 8)] {
            memory.extend(word.to_le_bytes());
        }
    }
    let half = types.starts_with("f16");
    let count = if half { columns / 4 } else { columns / 2 };
    let registers = |name: &str| (0..count).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ");
    let d = registers("%d");
    let (first, flags) = match a {
        Some(a) => (format!("{}", a.descriptor(0)), format!("{}, {}", u8::from(a.transposed), u8::from(b.transposed))),
        None => ("{%r10, %r11, %r12, %r13}".into(), format!("{}", u8::from(b.transposed))),
    };
    let wgmma = |scale: &str, sign: i32| {
        format!(
            "wgmma.mma_async.sync.aligned.m64n{columns}k16.{types} {{{d}}}, {first}, {}, {scale}, {sign}, 1, {flags};\n",
            b.descriptor(start)
        )
    };
    let [fence, proxy, wait, between] = parts;
    let mut body = format!(
        ".reg .b32 %d<128>;\nshl.b32 %r4, %r1, 4;\nmov.u32 %r5, 0;\n$fill:\nadd.u32 %r6, %r4, %r5;\ncvt.u64.u32 %rd3, %r6;\n\
         add.u64 %rd3, %rd1, %rd3;\nld.global.v2.u64 {{%rd4, %rd5}}, [%rd3];\nadd.u32 %r6, %r6, %r2;\n\
         st.shared.v2.u64 [%r6], {{%rd4, %rd5}};\nadd.u32 %r5, %r5, 2048;\nsetp.lt.u32 %p2, %r5, 32768;\n@%p2 bra $fill;\n\
         add.u64 %rd3, %rd3, 2048;\nld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd3];\n{proxy}\nbar.sync 0;\n\
         setp.ne.u32 %p3, 0, 0;\n{fence}\n{}{}wgmma.commit_group.sync.aligned;\n{wait}\nmul.lo.u32 %r6, %r1, {};\ncvt.u64.u32 %rd3, %r6;\n\
         add.u64 %rd3, %rd2, %rd3;\n",
        wgmma(if columns == 136 { "0" } else { "%p3" }, 1),
        if half { String::new() } else { between.to_string() + &wgmma("1", -1) + &wgmma("!%p3", 1) },
        4 * count
    );
    (0..count).for_each(|i| body += &format!("st.global.u32 [%rd3+{}], %d{i};\n", 4 * i));
    let out = Run { seed: 0, threads: 128, input: memory, output: 128 * 4 * count }.launch(&body)?;
    let words: Vec<u32> = out.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    for row in 0..64 {
        for column in 0..columns {
            let expected: i32 = (0..16).map(|k| of_a(row, k) * of_b(column, k)).sum();
            let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            let index = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
            let found = if half {
                f16::from_bits((words[thread * count + index / 2] >> (16 * (index % 2))) as u16).to_f32()
            } else {
                f32::from_bits(words[thread * count + index])
            };
            assert_eq!(found, expected as f32, "{types} row {row} column {column}");
        }
    }
    Ok(words)
}

const PARTS: [&str; 4] = ["wgmma.fence.sync.aligned;", "fence.proxy.async;", "wgmma.wait_group.sync.aligned 0;", ""];

#[test]
fn products_of_a_warp_group() {
    for swizzle in 0..4 {
        for transposed in [false, true] {
            let span = [16, 128, 64, 32][swizzle as usize];
            // Core matrices of 128 bytes, or groups of eight rows of the swizzle's span. Any layout without overlap
            // would do.
            let layout = |rows: usize| match (swizzle, transposed) {
                (0, _) => Layout { swizzle, transposed, leading: 128 * rows / 8, stride: 128 },
                (_, false) => Layout { swizzle, transposed, leading: 16, stride: 8 * span },
                (_, true) => Layout { swizzle, transposed, leading: 16 * span, stride: 8 * span },
            };
            for columns in [8, 64, 136] {
                product("f32.f16.f16", Some(&layout(64)), &layout(columns), columns, PARTS).unwrap();
                product("f32.bf16.bf16", None, &layout(columns), columns, PARTS).unwrap();
            }
            product("f16.f16.f16", Some(&layout(64)), &layout(32), 32, PARTS).unwrap();
        }
    }
}

#[test]
fn products_with_parts_missing() {
    let layout = || Layout { swizzle: 1, transposed: false, leading: 16, stride: 1024 };
    let without = |part: usize| {
        let parts = std::array::from_fn(|i| if i == part { "" } else { PARTS[i] });
        product("f32.f16.f16", Some(&layout()), &layout(), 64, parts).unwrap_err()
    };
    let (fence, proxy, wait) = (without(0), without(1), without(2));
    assert!(fence.message.contains("with no `wgmma.fence` before it"), "{fence}");
    assert_eq!(proxy.kind, FaultKind::MissingProxyFence, "{proxy}");
    assert!(wait.message.contains("the block ends while an asynchronous copy or product"), "{wait}");
}

#[test]
fn changing_sums_needs_another_fence() {
    let layout = || Layout { swizzle: 1, transposed: false, leading: 16, stride: 1024 };
    let with = |between: &str| {
        let between = format!("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n{between}\n");
        product("f32.f16.f16", Some(&layout()), &layout(), 64, [PARTS[0], PARTS[1], PARTS[2], &between])
    };
    with("").unwrap();
    with("mov.b32 %d3, %d3;\nwgmma.fence.sync.aligned;").unwrap();
    with("mov.b32 %r19, %d3;").unwrap();
    for touch in ["mov.b32 %d3, %d3;", "add.f32 %d0, %d0, 0f00000000;"] {
        let fault = with(touch).unwrap_err();
        assert!(fault.message.contains("with no `wgmma.fence` before it"), "{fault}");
    }
    // A first factor in registers needs the fence too.
    let between = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nmov.b32 %r11, %r11;\n";
    assert!(product("f32.f16.f16", None, &layout(), 64, [PARTS[0], PARTS[1], PARTS[2], between]).is_err());
}
