#!/usr/bin/env python3
"""Measures torch.matmul (cuBLAS) on the projections of OPT-13B and LLaMA-3-8B, in f16.

    python benchmarks/scripts/gemm_torch.py torch.json

For every weight [N, K] and M tokens, multiplies x [M, K] by the transpose of a weight. A CUDA graph contains the products with
several copies of the weight, too large together for any cache. The time is the median over replays, divided by the products in the
graph. Needs a GPU and torch.
"""
import argparse, json, statistics

import torch

# Rows, row length, and how quire uses the product. torch computes only the product.
WEIGHTS = [
    (15360, 5120, "opt-13b query, key, value"),
    (5120, 5120, "opt-13b out of attention"),
    (20480, 5120, "opt-13b up, relu"),
    (5120, 20480, "opt-13b down"),
    (50272, 5120, "opt-13b logits"),
    (6144, 4096, "llama-3-8b query, key, value"),
    (4096, 4096, "llama-3-8b out of attention"),
    (28672, 4096, "llama-3-8b gate and up"),
    (4096, 14336, "llama-3-8b down"),
    (128256, 4096, "llama-3-8b logits"),
]
TOKENS = [1, 4, 16, 64, 256, 1024, 4096]
# As in kernels/workbench/src/measure.rs.
ROTATED_BYTES = 512 << 20
REPLAYS = 50


def product_microseconds(m, weights):
    x = torch.randn(m, weights[0].shape[1], dtype=torch.float16, device="cuda")
    out = torch.empty(m, weights[0].shape[0], dtype=torch.float16, device="cuda")

    def products():
        for weight in weights:
            torch.matmul(x, weight.t(), out=out)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        products()  # cuBLAS allocates memory and chooses kernels before the capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(weights))
    return statistics.median(times)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("json", help="output file for the times")
    a = p.parse_args()
    torch.manual_seed(1)
    cases = []
    for n, k, what in WEIGHTS:
        copies = max(2, -(-ROTATED_BYTES // (2 * n * k)))
        weights = [torch.randn(n, k, dtype=torch.float16, device="cuda") * 0.02 for _ in range(copies)]
        for m in TOKENS:
            microseconds = product_microseconds(m, weights)
            cases.append({"m": m, "n": n, "k": k, "what": what, "microseconds": microseconds})
            print(f"{m:5} x {n:6} x {k:5} {microseconds:9.1f} us  {what}", flush=True)
        del weights
        torch.cuda.empty_cache()
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "cases": cases}
    with open(a.json, "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
