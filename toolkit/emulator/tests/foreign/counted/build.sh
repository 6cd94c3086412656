#!/bin/sh
# Compiles the kernels of other projects that BENCHMARKS.md compares with ours, into object files:
#
#     ./build.sh FOLDER
#
# Sources and compilers are PyPI packages at the versions below. The requirements are those of `../build.sh`. It takes a
# few minutes.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet nvidia-cuda-nvcc==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-nvvm==13.5.37 nvidia-cuda-cccl==13.3.5.0.6 nvidia-curand==10.4.5.25 triton==3.9.0
# Only the headers of these packages are needed.
"$tools/bin/pip" install --quiet --no-deps nvidia-cutlass==4.2.0.0 flashinfer-python==0.7.2.post1
packages=$(echo "$tools"/lib/python3*/site-packages)
cuda=$packages/nvidia/cu13
flashinfer=$packages/flashinfer/data

# Compiles one kernel: the name of the output, the target, and further arguments for nvcc.
compile() {
    name=$1 target=$2
    shift 2
    "$cuda/bin/nvcc" -ptx -arch="$target" -O3 -DNDEBUG -std=c++17 --expt-relaxed-constexpr -w -I"$cuda/include" \
        -I"$cuda/include/cccl" "$@" -o "$tools/$name.ptx"
    assemble "$name" "$target"
}

# Assembles one kernel. Registers and spills go to a text file next to the object file.
assemble() {
    "$cuda/bin/ptxas" -v -arch="$2" "$tools/$1.ptx" -o "$out/$1.cubin" 2>"$out/$1.txt"
}

cutlass=-I$packages/cutlass_library/source/include
compile cutlass_grouped sm_90a "$cutlass" cutlass_grouped.cu
for columns in 128 256; do
    for blocks in 1 2; do
        compile "cutlass_wgmma_${columns}_of_$blocks" sm_90a "$cutlass" -DCOLUMNS=$columns -DBLOCKS=$blocks cutlass_wgmma.cu
    done
    for target in sm_80 sm_90a; do
        compile "cutlass_mma_${columns}_$target" $target "$cutlass" -DCOLUMNS=$columns -DSTAGES=$((5 - columns / 128)) cutlass_mma.cu
    done
done

# The compiler flags that FlashInfer uses when it compiles itself at first use. Arguments: name, target, macros.
infer() {
    name=flashinfer_$1 target=$2
    shift 2
    compile "$name" "$target" -use_fast_math -I"$flashinfer/include" -I"$flashinfer/cutlass/include" \
        -I"$flashinfer/cutlass/tools/util/include" -I"$flashinfer/spdlog/include" "$@" flashinfer.cu
}
for head in 64 128; do
    for target in sm_80 sm_90a; do
        infer "prompt_${head}_$target" $target -DKERNEL=PROMPT -DHEAD=$head -DROWS=128 -DKEYS=4
        infer "decode_matrix_${head}_$target" $target -DKERNEL=PROMPT -DHEAD=$head -DROWS=16 -DKEYS=$((256 / head))
        for group in 1 4; do
            infer "decode_${head}_group_${group}_$target" $target -DKERNEL=DECODE -DHEAD=$head -DGROUP=$group
        done
    done
    infer "hopper_$head" sm_90a -DKERNEL=HOPPER -DHEAD=$head
done
# Variants: windows and softcaps. At head size 256 a block has 64 rows for prompts, and a warp 16 keys or 32.
for target in sm_80 sm_90a; do
    infer "prompt_128_window_$target" $target -DKERNEL=PROMPT -DHEAD=128 -DROWS=128 -DKEYS=4 -DWINDOW=1
    infer "prompt_128_softcap_$target" $target -DKERNEL=PROMPT -DHEAD=128 -DROWS=128 -DKEYS=4 -DSOFTCAP=1
    infer "prompt_256_softcap_$target" $target -DKERNEL=PROMPT -DHEAD=256 -DROWS=64 -DKEYS=2 -DSOFTCAP=1
    infer "decode_matrix_128_window_$target" $target -DKERNEL=PROMPT -DHEAD=128 -DROWS=16 -DKEYS=2 -DWINDOW=1
    infer "decode_matrix_128_softcap_$target" $target -DKERNEL=PROMPT -DHEAD=128 -DROWS=16 -DKEYS=2 -DSOFTCAP=1
    infer "decode_matrix_256_softcap_$target" $target -DKERNEL=PROMPT -DHEAD=256 -DROWS=16 -DKEYS=1 -DSOFTCAP=1
done

TRITON_CACHE_DIR=$tools/cache TRITON_DEFAULT_FP_FUSION=1 "$tools/bin/python" -B triton_larger.py "$tools"
for target in sm_80 sm_90a; do assemble triton_$target $target; done
# The smaller kernels that the tests run.
cp ../triton_sm_90a.ptx "$tools/triton_small_sm_90a.ptx"
assemble triton_small_sm_90a sm_90a
