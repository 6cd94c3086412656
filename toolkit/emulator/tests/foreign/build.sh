#!/bin/sh
# Compiles the kernels of the tests with NVIDIA's compiler, of the versions below, which Python's packages bring. It needs
# Python 3 with venv, and a C++ compiler.
set -eu
cd "$(dirname "$0")"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet nvidia-cuda-nvcc==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-nvvm==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
cuda=$(echo "$tools"/lib/python3*/site-packages/nvidia/cu13)
"$cuda/bin/nvcc" -ptx -arch=sm_90a -std=c++17 -I"$cuda/include" -I"$cuda/include/cccl" kernels.cu -o kernels.ptx
