#!/bin/sh
# Compiles the kernels of the tests with other people's compilers, of the versions below, which Python's packages bring: NVIDIA's
# for C++, two versions of Triton, and Numba. It needs Python 3.11 or later with venv, and a C++ compiler; no GPU.
set -eu
cd "$(dirname "$0")"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

# A place of its own for packages, whose name is given, then the packages.
install() {
    place=$tools/$1
    shift
    python3 -m venv "$place"
    "$place/bin/pip" install --quiet "$@"
}

install cuda nvidia-cuda-nvcc==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-nvvm==13.5.37 \
    nvidia-cuda-cccl==13.3.5.0.6
cuda=$(echo "$tools"/cuda/lib/python3*/site-packages/nvidia/cu13)
"$cuda/bin/nvcc" -ptx -arch=sm_90a -std=c++17 -I"$cuda/include" -I"$cuda/include/cccl" kernels.cu -o kernels.ptx

export TRITON_CACHE_DIR="$tools/cache" TRITON_DEFAULT_FP_FUSION=1
for version in 3.4.0 3.9.0; do
    install "triton-$version" "triton==$version"
    "$tools/triton-$version/bin/python" triton_kernels.py .
done

install numba numba==0.63.1 numba-cuda==0.30.0 cuda-python==13.2.0 nvidia-cuda-runtime==13.0.96 nvidia-nvvm==13.0.88 \
    nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-nvjitlink==13.0.88
"$tools/numba/bin/python" numba_kernels.py .
