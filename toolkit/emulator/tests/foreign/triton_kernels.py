"""Compiles kernels for the emulator's tests with Triton (see `build.sh`). `python triton_kernels.py FOLDER` writes one PTX file for
each group of kernels, without debug information. Neither a GPU nor PyTorch is needed."""

import inspect
import re
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """Adds two vectors in blocks. The last block is masked."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def softmax(x, out, columns, stride, BLOCK: tl.constexpr):
    """Computes the softmax of a row that fits in one block."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0).to(tl.int64) * stride
    values = tl.load(x + row + at, inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), inside)


@triton.jit
def matmul(a, b, c, m, n, k, a_stride, b_stride, c_stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Computes a tile of a product of row-major f16 matrices in f32. Elements past the edges are masked."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    a_at = a + rows[:, None] * a_stride + depth[None, :]
    b_at = b + depth[:, None] * b_stride + columns[None, :]
    sums = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        a_tile = tl.load(a_at, (rows[:, None] < m) & (first + depth[None, :] < k), other=0.0)
        b_tile = tl.load(b_at, (first + depth[:, None] < k) & (columns[None, :] < n), other=0.0)
        sums = tl.dot(a_tile, b_tile, sums)
        a_at += K
        b_at += K * b_stride
    tl.store(c + rows[:, None] * c_stride + columns[None, :], sums, (rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_tensors(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Computes a tile of the same product with tensor maps, which clip tiles at the edges, and an f16 result."""
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    sums = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        sums = tl.dot(a.load([row, first]), b.load([first, column]), sums)
    c.store([row, column], sums.to(tl.float16))


@triton.jit
def attention(q, k, v, out, length, scale, M: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr):
    """Computes attention of a block of queries with a running maximum and sum of the softmax. Each head has `length` f16
    vectors of size `SIZE`."""
    head = tl.program_id(1).to(tl.int64) * length * SIZE
    rows = tl.program_id(0) * M + tl.arange(0, M)
    inner = tl.arange(0, SIZE)
    queries = tl.load(q + head + rows[:, None] * SIZE + inner[None, :], rows[:, None] < length, other=0.0)
    largest = tl.full((M,), -1e30, dtype=tl.float32)
    total = tl.zeros((M,), dtype=tl.float32)
    sums = tl.zeros((M, SIZE), dtype=tl.float32)
    end = tl.minimum(length, (tl.program_id(0) + 1) * M) if CAUSAL else length
    for first in range(0, end, N):
        at = first + tl.arange(0, N)
        keys = tl.load(k + head + at[None, :] * SIZE + inner[:, None], at[None, :] < length, other=0.0)
        scores = tl.dot(queries, keys) * scale
        seen = (at[None, :] < length) & (at[None, :] <= rows[:, None]) if CAUSAL else at[None, :] < length
        scores = tl.where(seen, scores, -1e30)
        greater = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - greater)
        powers = tl.exp(scores - greater[:, None])
        total = total * shrink + tl.sum(powers, 1)
        values = tl.load(v + head + at[:, None] * SIZE + inner[None, :], at[:, None] < length, other=0.0)
        sums = tl.dot(powers.to(tl.float16), values, sums * shrink[:, None])
        largest = greater
    at = out + head + rows[:, None] * SIZE + inner[None, :]
    tl.store(at, (sums / total[:, None]).to(tl.float16), rows[:, None] < length)


HALVES, FLOATS = "*fp16", "*fp32"
VECTORS = dict(x=FLOATS, y=FLOATS, out=FLOATS, n="i32")
ROWS = dict(x=FLOATS, out=FLOATS, columns="i32", stride="i32")
MATRICES = dict(a=HALVES, b=HALVES, c=FLOATS) | dict.fromkeys(["m", "n", "k", "a_stride", "b_stride", "c_stride"], "i32")
HEADS = dict(q=HALVES, k=HALVES, v=HALVES, out=HALVES, length="i32", scale="fp32")
# Asynchronous copies need rows that begin and end at multiples of 16 bytes.
EVEN = ("n", "k", "a_stride", "b_stride", "c_stride")


def tensors(m, n, k):
    shapes = dict(a=(m, k), b=(k, n), c=(m, n))
    return {name: f"tensordesc<fp16[{rows}, {columns}]>" for name, (rows, columns) in shapes.items()} | dict(k="i32")


# The kernels of each text: name, kernel, arguments, constants, arguments that are multiples of 16, warps, and pipeline
# stages.
GENERAL = [
    ("add", add, VECTORS, dict(BLOCK=512), (), 4, 1),
    ("add_aligned", add, VECTORS, dict(BLOCK=1024), ("n",), 4, 1),
    ("softmax", softmax, ROWS, dict(BLOCK=256), (), 4, 1),
    ("softmax_wide", softmax, ROWS, dict(BLOCK=2048), ("stride",), 8, 1),
]
AMPERE = [
    ("matmul", matmul, MATRICES, dict(M=64, N=64, K=32), EVEN, 4, 3),
    ("matmul_narrow", matmul, MATRICES, dict(M=32, N=32, K=16), (), 2, 2),
    ("attention", attention, HEADS, dict(M=64, N=32, SIZE=64, CAUSAL=True), (), 4, 2),
]
HOPPER = [
    ("matmul", matmul, MATRICES, dict(M=64, N=64, K=64), EVEN, 4, 3),
    ("matmul_tensors", matmul_tensors, tensors(64, 64, 64), dict(M=64, N=64, K=64), (), 4, 3),
    ("matmul_tensors_wide", matmul_tensors, tensors(128, 128, 32), dict(M=128, N=128, K=32), (), 8, 4),
    ("attention", attention, HEADS, dict(M=64, N=64, SIZE=64, CAUSAL=True), (), 4, 2),
]


def compile(name, kernel, arguments, constants, multiples, warps, stages, capability):
    names = list(inspect.signature(kernel.fn).parameters)
    assert names == [*arguments, *constants], name
    aligned = [at for at, (argument, kind) in enumerate(arguments.items()) if kind[0] == "*" or argument in multiples]
    source = ASTSource(
        fn=kernel,
        signature=arguments | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(constant),): value for constant, value in constants.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at in aligned},
    )
    options = dict(num_warps=warps, num_stages=stages)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = compiled.asm["ptx"].replace(f".entry {kernel.__name__}(", f".entry {name}(")
    return bare(ptx), compiled.metadata.shared


def bare(ptx):
    """Removes debug information from the text."""
    ptx = re.sub(r"\n\t\.section.*?\n\t\}", "", ptx, flags=re.S)
    dropped = re.compile(r"\s*(\.loc|\.file|//|\$L__(tmp|func_begin|func_end|info)\w*:)|\s*$")
    lines = [re.sub(r"\s*//.*", "", line) for line in ptx.splitlines()]
    return [line for line in lines if not dropped.match(line)]


def write(path, capability, kernels):
    header, bodies = None, []
    for name, *rest in kernels:
        lines, shared = compile(name, *rest, capability)
        start = next(at for at, line in enumerate(lines) if ".entry" in line)
        outside = [line for line in lines[:start] if not line.startswith(".extern .shared")]
        assert header in (None, outside), (header, outside)
        header, body = outside, "\n".join(lines[start:])
        bodies.append(f"// {name}: {shared} bytes of shared memory\n" + body)
    # All kernels share one name for dynamic shared memory.
    used = ".extern .shared .align 16 .b8 global_smem[];"
    head = [f"// Compiled by Triton {triton.__version__}.", *header, used]
    path.write_text("\n".join(head + bodies) + "\n")


def main():
    folder, version = Path(sys.argv[1]), triton.__version__.split(".")
    if version[:2] == ["3", "4"]:
        write(folder / "triton_3_4_sm_90a.ptx", 90, HOPPER)
    else:
        write(folder / "triton_sm_80.ptx", 80, GENERAL + AMPERE)
        write(folder / "triton_sm_90a.ptx", 90, GENERAL + HOPPER)


if __name__ == "__main__":
    main()
