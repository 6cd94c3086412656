// CUTLASS f16 GEMM for Hopper. A block computes a tile of 128 by COLUMNS in steps of 64 along k, and BLOCKS blocks form
// a cluster. Both factors are contiguous along k, sums are f32, and results are f16.
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using cute::Int;
using cute::Shape;

using Halves = cutlass::half_t;
using BlockTile = Shape<Int<128>, Int<COLUMNS>, Int<64>>;
using Cluster = Shape<Int<BLOCKS>, Int<1>, Int<1>>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, BlockTile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float,
    float, void, cutlass::layout::RowMajor, 8, Halves, cutlass::layout::RowMajor, 8,
    cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Halves, cutlass::layout::RowMajor, 8, Halves,
    cutlass::layout::ColumnMajor, 8, float, BlockTile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;

using HalvesProduct = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;

template __global__ void cutlass::device_kernel<HalvesProduct>(__grid_constant__ typename HalvesProduct::Params const);
