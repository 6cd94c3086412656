"""Compiles kernels for the emulator's tests with Numba (see `build.sh`). `python numba_kernels.py FOLDER` writes their PTX. No GPU
is needed."""

import re
import sys
from importlib.metadata import version
from pathlib import Path

import numba
import numba_cuda
from numba import cuda, float32, float64, int32, types


def sum_of_squares(x, out):
    """Sums squares. Each block reduces the sums of its threads in a tree and adds its sum to the result."""
    parts = cuda.shared.array(128, float32)
    thread = cuda.threadIdx.x
    total = float32(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i] * x[i]
    parts[thread] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if thread < step:
            parts[thread] += parts[thread + step]
        cuda.syncthreads()
        step //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, parts[0])


def product(a, b, c):
    """Computes a tile of a matrix product of any shape through shared memory."""
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for first in range(0, a.shape[1], 8):
        inside = row < a.shape[0] and first + x < a.shape[1]
        a_tile[y, x] = a[row, first + x] if inside else float32(0)
        inside = first + y < b.shape[0] and column < b.shape[1]
        b_tile[y, x] = b[first + y, column] if inside else float32(0)
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def mandelbrot(steps, left, top, pitch, most):
    """Counts for how many steps the sequence of each point stays bounded, in f64."""
    column, row = cuda.grid(2)
    if row < steps.shape[0] and column < steps.shape[1]:
        x0, y0 = left + column * pitch, top + row * pitch
        x, y, count = 0.0, 0.0, 0
        while count < most and x * x + y * y <= 4.0:
            x, y = x * x - y * y + x0, 2.0 * x * y + y0
            count += 1
        steps[row, column] = count


def warps(x, sums, places, peers):
    """Computes prefix sums in each warp, the index of each even number among the even ones, and the lanes with equal numbers."""
    i = cuda.grid(1)
    lane = cuda.laneid
    value = x[i]
    total = value
    step = 1
    while step < 32:
        below = cuda.shfl_up_sync(0xFFFFFFFF, total, step)
        if lane >= step:
            total += below
        step *= 2
    sums[i] = total
    even = cuda.ballot_sync(0xFFFFFFFF, value % 2 == 0)
    places[i] = cuda.popc(even & ((1 << lane) - 1)) if value % 2 == 0 else -1
    peers[i] = cuda.match_any_sync(0xFFFFFFFF, value)


def line(ty, dimensions=1):
    return types.Array(ty, dimensions, "C")


KERNELS = [
    (sum_of_squares, (line(float32), line(float32))),
    (product, (line(float32, 2),) * 3),
    (mandelbrot, (line(int32, 2), float64, float64, float64, int32)),
    (warps, (line(int32),) * 4),
]


def compile(kernel, signature):
    ptx, _ = cuda.compile_ptx(kernel, signature, cc=(8, 0), device=False)
    name = re.search(r"\.entry (\w+)", ptx)[1]
    # Numba's mangled kernel name encodes how it was compiled, so replace it. Names of shared memory restart in each
    # kernel, so make them unique.
    ptx = ptx.replace(name, kernel.__name__).replace("_cudapy_smem", f"{kernel.__name__}_shared")
    lines = [re.sub(r"\s*//.*", "", line) for line in ptx.splitlines()]
    return [line for line in lines if line.strip()]


def main():
    nvvm = version("nvidia-nvvm")
    head = [f"// Compiled by Numba {numba.__version__}, numba-cuda {numba_cuda.__version__} and NVVM {nvvm}."]
    texts = [compile(*kernel) for kernel in KERNELS]
    header = texts[0][:3]
    assert all(text[:3] == header for text in texts), header
    body = [line for text in texts for line in text[3:]]
    Path(sys.argv[1], "numba_sm_80.ptx").write_text("\n".join(head + header + body) + "\n")


main()
