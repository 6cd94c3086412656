#!/bin/sh
# Builds broken.ptx from src/lib.rs with the compiler pass that breaks barriers enabled. RUSTC must name a compiler that
# includes the sources of its standard library.
set -e
cd "$(dirname "$0")"
RUSTC_BOOTSTRAP=1 cargo rustc --release --target nvptx64-nvidia-cuda -Zbuild-std=core --target-dir "${TMPDIR:-/tmp}/broken-kernels" -- \
    -C target-cpu=sm_80 --emit=asm -C linker=true -C linker-flavor=llbc --remap-path-prefix "$PWD=broken"
# Drop the debug sections and the path to the standard library's sources.
sed -e '/^[[:space:]]*\.section/,$d' -e 's|"/.*/library/|"library/|' \
    "${TMPDIR:-/tmp}"/broken-kernels/nvptx64-nvidia-cuda/release/deps/broken.s > broken.ptx
