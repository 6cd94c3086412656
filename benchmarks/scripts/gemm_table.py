#!/usr/bin/env python3
"""Joins the times of quire's and torch's projections into a Markdown table.

    python benchmarks/scripts/gemm_table.py microbench.json torch.json [--target sm_90a]

The first file comes from `cargo test -p kernels --release --test microbench -- --json microbench.json` on a GPU, the second from
gemm_torch.py on the same GPU. Exits with 1 if a product is slower than its goal, or is missing.
"""
import argparse, json, re, sys


def goal(m):
    """Returns the goal as a fraction of cuBLAS's speed."""
    return 0.95 if m <= 64 else 0.6


def quire_times(path, target):
    """Returns the device's name, the microseconds and kernel of each (m, n, k) in f16, and the read-only stream's GB/s."""
    with open(path) as file:
        tables = json.load(file)
    table = next((table for table in tables if table["target"] == target), None)
    if table is None:
        sys.exit(f"error: {path} has nothing for {target}")
    times, stream = {}, None
    for case in table["cases"]:
        if "microseconds" not in case:
            sys.exit(f"error: {path} comes from the emulator, which measures no times")
        if case["kernel"] == "v_read_stream":
            stream = case["floor_bytes"] / case["microseconds"] / 1e3
        shape = re.match(r"(\d+) x (\d+) x (\d+), ", case["shape"])
        if shape and re.match(r"gem\w+_f16_", case["kernel"]):
            times[tuple(map(int, shape.groups()))] = (case["microseconds"], case["kernel"])
    return table["device"], times, stream


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("microbench")
    p.add_argument("torch")
    p.add_argument("--target", default="sm_90a")
    a = p.parse_args()
    device, times, stream = quire_times(a.microbench, a.target)
    with open(a.torch) as file:
        torch = json.load(file)
    if device != torch["device"]:
        sys.exit(f"error: the times come from different GPUs, {device} and {torch['device']}")
    print(f"{device}, PTX for {a.target}; torch {torch['torch']}, CUDA {torch['cuda']}", end="")
    print(f"; read-only stream {stream:.0f} GB/s\n" if stream else "\n")
    print("| M | N x K | weight | cuBLAS, us | quire, us | of cuBLAS's speed | kernel | GB/s of weights | TFLOP/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    short = 0
    for case in torch["cases"]:
        m, n, k = case["m"], case["n"], case["k"]
        found = times.get((m, n, k))
        if found is None:
            short += 1
            print(f"| {m} | {n} x {k} | {case['what']} | {case['microseconds']:.1f} | missing | | | | |")
            continue
        ours, kernel = found
        ratio = case["microseconds"] / ours
        short += ratio < goal(m)
        mark = "" if ratio >= goal(m) else f" (goal {goal(m):.2f}x)"
        rates = f"{2 * n * k / ours / 1e3:.0f} | {2 * m * n * k / ours / 1e6:.1f}"
        print(f"| {m} | {n} x {k} | {case['what']} | {case['microseconds']:.1f} | {ours:.1f} | {ratio:.2f}x{mark} | `{kernel}` | {rates} |")
    print(f"\n{short} of {len(torch['cases'])} products below the goal or missing")
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
