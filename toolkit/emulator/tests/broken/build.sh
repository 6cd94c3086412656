#!/bin/sh
# Makes broken.ptx of src/lib.rs, with the pass that breaks barriers left on. Needs a compiler with the sources of its
# standard library; RUSTC names it.
set -e
cd "$(dirname "$0")"
RUSTC_BOOTSTRAP=1 cargo rustc --release --target nvptx64-nvidia-cuda -Zbuild-std=core --target-dir "${TMPDIR:-/tmp}/broken-kernels" -- \
    -C target-cpu=sm_80 --emit=asm -C linker=true -C linker-flavor=llbc --remap-path-prefix "$PWD=broken"
# Debug sections are not needed, nor is where the library's sources lie.
sed -e '/^[[:space:]]*\.section/,$d' -e 's|"/.*/library/|"library/|' \
    "${TMPDIR:-/tmp}"/broken-kernels/nvptx64-nvidia-cuda/release/deps/broken.s > broken.ptx
