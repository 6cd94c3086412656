"""Compiles kernels of `triton_kernels.py` with the tile sizes of the tables in BENCHMARKS.md. `python triton_larger.py FOLDER` writes
one PTX file for each kind of GPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from triton_kernels import EVEN, HEADS, MATRICES, attention, matmul, write

# Name, kernel, arguments, constants, arguments that are multiples of 16, warps, and pipeline stages.
AMPERE = [
    ("matmul_128", matmul, MATRICES, dict(M=128, N=128, K=64), EVEN, 4, 3),
    ("matmul_256", matmul, MATRICES, dict(M=128, N=256, K=64), EVEN, 8, 3),
    ("attention_64", attention, HEADS, dict(M=128, N=64, SIZE=64, CAUSAL=True), (), 4, 3),
    ("attention_128", attention, HEADS, dict(M=128, N=64, SIZE=128, CAUSAL=True), (), 8, 2),
]
HOPPER = [
    ("attention_64", attention, HEADS, dict(M=128, N=128, SIZE=64, CAUSAL=True), (), 8, 2),
    ("attention_128", attention, HEADS, dict(M=128, N=128, SIZE=128, CAUSAL=True), (), 8, 2),
]

folder = Path(sys.argv[1])
write(folder / "triton_sm_80.ptx", 80, AMPERE)
write(folder / "triton_sm_90a.ptx", 90, HOPPER)
