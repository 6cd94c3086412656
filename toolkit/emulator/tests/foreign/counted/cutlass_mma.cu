// CUTLASS f16 GEMM for Ampere. A block computes a tile of 128 by COLUMNS, in steps of 64 along k and with STAGES
// stages. A warp computes 64 by 64. Both factors are contiguous along k, sums are f32, and results are f16.
#include <cutlass/device_kernel.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

using Halves = cutlass::half_t;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Halves, 8, float, float>;

using HalvesProduct = cutlass::gemm::kernel::DefaultGemm<
    Halves, cutlass::layout::RowMajor, 8, Halves, cutlass::layout::ColumnMajor, 8, Halves, cutlass::layout::RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, COLUMNS, 64>,
    cutlass::gemm::GemmShape<64, 64, 64>, cutlass::gemm::GemmShape<16, 8, 16>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, STAGES, false, cutlass::arch::OpMultiplyAdd>::GemmKernel;

template __global__ void cutlass::Kernel<HalvesProduct>(typename HalvesProduct::Params);
