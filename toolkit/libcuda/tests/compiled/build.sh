#!/usr/bin/env bash
# Rebuilds the files in this folder with nvcc 13.5 (nvidia-cuda-nvcc 13.5.37 from PyPI): one kernel as fatbins with each
# kind of compression and as SASS, and one kernel as PTX.
set -euo pipefail
cd "$(dirname "$0")"
ptx=(-gencode arch=compute_80,code=compute_80)
nvcc -fatbin --compress-mode=none "${ptx[@]}" -gencode arch=compute_90,code=compute_90 add.cu -o plain.fatbin
nvcc -fatbin --compress-mode=speed "${ptx[@]}" add.cu -o lz4.fatbin
nvcc -fatbin --compress-mode=balance "${ptx[@]}" add.cu -o zstd.fatbin
nvcc -fatbin -gencode arch=compute_80,code=sm_80 add.cu -o sass.fatbin
nvcc -ptx -arch=compute_80 checked.cu -o checked.ptx
