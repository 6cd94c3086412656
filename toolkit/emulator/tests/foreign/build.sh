#!/bin/sh
# Compiles the test kernels with other projects' compilers, installed from Python packages at the versions below:
# NVIDIA's C++ compiler (with CUB), two versions of Triton, and Numba. `products.py` writes one PTX file directly.
# Requires Python 3.11 or later with venv, and a C++ compiler. No GPU is needed.
set -eu
cd "$(dirname "$0")"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

# Creates a virtual environment with the given name and installs the given packages into it.
install() {
    place=$tools/$1
    shift
    python3 -m venv "$place"
    "$place/bin/pip" install --quiet "$@"
}

install cuda nvidia-cuda-nvcc==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-nvvm==13.5.37 \
    nvidia-cuda-cccl==13.3.5.0.6
cuda=$(echo "$tools"/cuda/lib/python3*/site-packages/nvidia/cu13)
for source in cub halves kernels tiles; do
    "$cuda/bin/nvcc" -ptx -arch=sm_90a -std=c++17 -I"$cuda/include" -I"$cuda/include/cccl" "$source.cu" -o "$source.ptx"
done
# NVIDIA's assembler must accept the PTX that our script writes.
python3 products.py products.ptx
"$cuda/bin/ptxas" -arch=sm_90a products.ptx -o "$tools/products.cubin"

export TRITON_CACHE_DIR="$tools/cache" TRITON_DEFAULT_FP_FUSION=1
for version in 3.4.0 3.9.0; do
    install "triton-$version" "triton==$version"
    "$tools/triton-$version/bin/python" triton_kernels.py .
done

install numba numba==0.63.1 numba-cuda==0.30.0 cuda-python==13.2.0 nvidia-cuda-runtime==13.0.96 nvidia-nvvm==13.0.88 \
    nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-nvjitlink==13.0.88
"$tools/numba/bin/python" numba_kernels.py .
