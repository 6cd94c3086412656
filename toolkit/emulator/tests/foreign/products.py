"""Writes the kernels of `products.ptx`: warp group products (`wgmma`) with every number of columns, both factors in either
order, the first factor in registers or in shared memory, and sums of both types. `ptxas` checks the result (see `build.sh`).

The arguments of a kernel are the maps of both tensors, the boxes that make up a tile, and for each step the offsets of its
descriptors. Everything that depends on the swizzle is an argument, as in handwritten kernels.
"""

import sys

HEAD = """// Written by products.py.
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tiles[];
"""

# The parameters are the two tensor maps, the box descriptions, the descriptor steps in global memory, the register
# fragments of the first factor (if it is in registers), and the output sums. `boxes` holds for A and then for B the
# number of boxes, the distance of their corners in the tensor, their distance in shared memory and the first offset,
# and then the expected bytes and the number of steps.
KERNEL = """
// {name}: 40960 bytes
.visible .entry {name}(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .align 8 .b8 boxes[40],
    .param .u64 steps, .param .u64 fragments, .param .u64 sums) {{
    .reg .pred %p<5>; .reg .b32 %r<24>; .reg .b64 %w<16>; .reg .b32 %d<{count}>;
    .shared .align 8 .b8 arrived[8];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tiles;
    mov.u32 %r2, arrived;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra loaded;
    mbarrier.init.shared.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
    ld.param.u32 %r3, [boxes+32];
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2], %r3;
{loads}loaded:
    bar.sync 0;
waiting:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;
    @!%p1 bra waiting;
    cvt.u64.u32 %w0, %r1;
    shr.u64 %w0, %w0, 4;
    ld.param.u64 %w1, [steps];
    ld.param.u64 %w2, [fragments];
    mul.wide.u32 %w3, %r0, 16;
    add.u64 %w2, %w2, %w3;
    ld.param.u32 %r4, [boxes+36];
    setp.ne.u32 %p2, 0, 0;
again:
    ld.global.v2.u64 {{%w4, %w5}}, [%w1];
    add.u64 %w4, %w4, %w0;
    add.u64 %w5, %w5, %w0;
{registers}    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n{n}k16.{types} {{{d}}},
        {first}, %w5, %p2, 1, {sign}, {orders};
    wgmma.commit_group.sync.aligned;
{wait}    setp.eq.u32 %p2, 0, 0;
    add.u64 %w1, %w1, 16;
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %p3, %r4, 0;
    @%p3 bra again;
    wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %w6, [sums];
    mov.u32 %r14, %ctaid.x;
    mad.lo.u32 %r14, %r14, 128, %r0;
    mul.wide.u32 %w7, %r14, {bytes};
    add.u64 %w6, %w6, %w7;
{stores}    ret;
}}
"""

# Loads the boxes of one factor. Each box is a fixed distance along one dimension and a fixed number of bytes after the
# one before.
LOAD = """    ld.param.v2.u32 {{%r5, %r6}}, [boxes+{at}];
    ld.param.v2.u32 {{%r7, %r8}}, [boxes+{next}];
    add.u32 %r8, %r8, %r1;
    mov.u32 %r9, 0;
    mov.u64 %w8, {map};
    cvta.param.u64 %w8, %w8;
{map}_box:
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r8], [%w8, {{%r9, 0}}], [%r2];
    add.u32 %r9, %r9, %r6;
    add.u32 %r8, %r8, %r7;
    sub.u32 %r5, %r5, 1;
    setp.ne.u32 %p4, %r5, 0;
    @%p4 bra {map}_box;
"""


def kernel(types, n, a, b, negative):
    count = n // 4 if types.startswith("f16") else n // 2
    from_registers = a == "registers"
    loads = ("" if from_registers else LOAD.format(at=0, next=8, map="a")) + LOAD.format(at=16, next=24, map="b")
    # A thread's sums begin at a multiple of the store width.
    width = 4 if count % 4 == 0 else 2
    groups = [range(i, i + width) for i in range(0, count, width)]
    store = lambda g: f"    st.global.v{len(g)}.b32 [%w6+{4 * g[0]}], {{{', '.join(f'%d{i}' for i in g)}}};\n"
    order = {"rows": 0, "columns": 1}
    letters = "".join({"rows": "r", "columns": "c", "registers": "g"}[word] for word in (a, b))
    return KERNEL.format(
        name=f"{types.replace('.', '_')}_n{n}_{letters}{'_minus' if negative else ''}",
        types=types, n=n, count=count, bytes=4 * count, loads=loads,
        registers="    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%w2];\n    add.u64 %w2, %w2, 2048;\n"
        if from_registers else "",
        first="{%r10, %r11, %r12, %r13}" if from_registers else "%w4",
        d=", ".join(f"%d{i}" for i in range(count)),
        sign=-1 if negative else 1,
        orders=str(order[b]) if from_registers else f"{order[a]}, {order[b]}",
        # Registers of a factor may be overwritten only after the product ends.
        wait="    wgmma.wait_group.sync.aligned 0;\n" if from_registers else "",
        stores="".join(map(store, groups)),
    )


ORDERS = [("rows", "rows"), ("rows", "columns"), ("columns", "rows"), ("columns", "columns"),
          ("registers", "rows"), ("registers", "columns")]
kernels = [
    # Every number of columns with alternating orders, and some numbers of columns with all orders.
    (types, n, *ORDERS[order], n == 24)
    for types in ("f32.f16.f16", "f32.bf16.bf16", "f16.f16.f16")
    for n in range(8, 257, 8)
    for order in range(6)
    if (n in (16, 96, 256) if types == "f32.f16.f16" else n in (40, 128))
    or order == (n // 8 + len(types)) % 6 and (types == "f32.f16.f16" or n % 32 == 24)
]
with open(sys.argv[1], "w") as out:
    out.write(HEAD + "".join(kernel(*arguments) for arguments in kernels))
