// A product of halves by CUTLASS for Ampere: tiles of 128 by COLUMNS, 64 along k, of which a warp has 64 by 64, in STAGES. Both factors
// lie along k, sums are f32, results halves.
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
