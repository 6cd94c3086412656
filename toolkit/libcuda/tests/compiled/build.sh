#!/usr/bin/env bash
# Makes what is here again, with nvcc 13.5 (nvidia-cuda-nvcc 13.5.37 of PyPI): one kernel as fatbins that are compressed in each
# way, and as SASS; one as PTX.
set -euo pipefail
cd "$(dirname "$0")"
ptx=(-gencode arch=compute_80,code=compute_80)
nvcc -fatbin --compress-mode=none "${ptx[@]}" -gencode arch=compute_90,code=compute_90 add.cu -o plain.fatbin
nvcc -fatbin --compress-mode=speed "${ptx[@]}" add.cu -o lz4.fatbin
nvcc -fatbin --compress-mode=balance "${ptx[@]}" add.cu -o zstd.fatbin
nvcc -fatbin -gencode arch=compute_80,code=sm_80 add.cu -o sass.fatbin
nvcc -ptx -arch=compute_80 checked.cu -o checked.ptx
