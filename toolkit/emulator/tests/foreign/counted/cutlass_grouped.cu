// CUTLASS f16 products of several groups of rows in one launch for Hopper, as for experts. A block computes a tile of 128
// by 256 in steps of 64 along k. Rows of a group are contiguous. Factors, sums and results are as in cutlass_wgmma.cu.
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using cute::Int;
using cute::Shape;

using Halves = cutlass::half_t;
using BlockTile = Shape<Int<128>, Int<256>, Int<64>>;
using Cluster = Shape<Int<1>, Int<1>, Int<1>>;
using Groups = cutlass::gemm::GroupProblemShape<Shape<int, int, int>>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, BlockTile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float,
    float, void, cutlass::layout::RowMajor *, 8, Halves, cutlass::layout::RowMajor *, 8,
    cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Halves, cutlass::layout::RowMajor *, 8, Halves,
    cutlass::layout::ColumnMajor *, 8, float, BlockTile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;

using GroupedProduct = cutlass::gemm::kernel::GemmUniversal<Groups, Mainloop, Epilogue>;

template __global__ void cutlass::device_kernel<GroupedProduct>(__grid_constant__ typename GroupedProduct::Params const);
