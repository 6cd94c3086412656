//! The arguments of a planned launch.

use cuda_std::launch::{DevicePtr, KernelCall, TensorTile, TileDimension};
use cuda_std::ptx::pattern::TilePattern;

use super::{GemmKernel, GemmPlan, NormOperands, Operands, Product};
use crate::element::ElementType;
use crate::gemm::fragment::is_light;
use crate::gemm::{decode, gemv, hopper, operand, prefill};
use crate::with_element;

impl GemmPlan {
    /// Returns the kernel with its arguments, for elements of type `element`.
    pub fn call(self, element: ElementType, operands: Operands) -> KernelCall {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters, norm } = operands;
        let NormOperands { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals } = norm;
        let norm = norm as u32;
        let Product { m, n, k, epilogue } = self.product;
        let (columns, epilogue) = (epilogue.columns(n), epilogue.bits());
        macro_rules! hopper {
            ($T:ident, $N:literal) => {{
                let (x, weight) = (rows(x, m, k, x_stride, hopper::ROWS), rows(weight, n, k, k, $N / self.together()));
                let is_tiled = is_light(epilogue)
                    && out.address().is_multiple_of(16)
                    && out_stride.is_multiple_of(8)
                    && columns.is_multiple_of(8);
                let (tiles, epilogue) = if is_tiled {
                    let out = DevicePtr::from_address(out.address());
                    (rows(out, m, columns, out_stride, hopper::GROUP_ROWS), epilogue | hopper::TILED)
                } else {
                    (weight, epilogue)
                };
                hopper::gemm_hopper { x, weight, tiles, bias, out, workspace, counters, out_stride, m, n, k, epilogue }
                    .instance::<$T, $N>()
            }};
        }
        // A call of a kernel that can normalise. Kernels that take `x` as a tensor have no stride.
        macro_rules! normed {
            ($kernel:path, $T:ident, $N:literal, $x:expr, $weight:expr $(, $x_stride:ident)?) => {{
                use $kernel as Args;
                Args {
                    x: $x,
                    weight: $weight,
                    bias,
                    out,
                    workspace,
                    counters,
                    $($x_stride,)?
                    out_stride,
                    m,
                    n,
                    k,
                    epilogue,
                    norm,
                    norm_weight,
                    norm_bias,
                    normed,
                    eps,
                    arrivals,
                }
                .instance::<$T, $N>()
            }};
        }
        macro_rules! call {
            ($kernel:path, $T:ident, $N:literal) => {
                normed!($kernel, $T, $N, x, weight, x_stride)
            };
        }
        macro_rules! hopper_decode {
            ($T:ident, $N:literal) => {{
                let (x, weight) = (rows(x, m, k, x_stride, $N), rows(weight, n, k, k, hopper::decode::ROWS));
                normed!(hopper::decode::gemm_hopper_decode, $T, $N, x, weight)
            }};
        }
        macro_rules! prefill {
            ($T:ident, $N:literal) => {{
                use prefill::gemm as Args;
                Args { x, weight, bias, out, workspace, counters, x_stride, out_stride, m, n, k, epilogue }
                    .instance::<$T, $N>()
            }};
        }
        with_element!(element, T => match self.kernel {
            GemmKernel::Gemv(1) => call!(gemv::gemv, T, 1),
            GemmKernel::Gemv(2) => call!(gemv::gemv, T, 2),
            GemmKernel::Gemv(_) => call!(gemv::gemv, T, 4),
            GemmKernel::Decode(8) => call!(decode::gemm_decode, T, 8),
            GemmKernel::Decode(16) => call!(decode::gemm_decode, T, 16),
            GemmKernel::Decode(32) => call!(decode::gemm_decode, T, 32),
            GemmKernel::Decode(_) => call!(decode::gemm_decode, T, 64),
            GemmKernel::Prefill(128) => prefill!(T, 128),
            GemmKernel::Prefill(_) => prefill!(T, 256),
            GemmKernel::Hopper(128) | GemmKernel::HopperPairs(128) => hopper!(T, 128),
            GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) => hopper!(T, 256),
            GemmKernel::HopperDecode(8) => hopper_decode!(T, 8),
            GemmKernel::HopperDecode(16) => hopper_decode!(T, 16),
            GemmKernel::HopperDecode(32) => hopper_decode!(T, 32),
            GemmKernel::HopperDecode(_) => hopper_decode!(T, 64),
        })
    }
}

/// Describes a matrix `[count][k]` whose rows are `stride` elements apart, in tiles of `tile` rows.
fn rows(matrix: DevicePtr<u16>, count: u32, k: u32, stride: u32, tile: u32) -> TensorTile {
    let along = TileDimension { size: k.into(), stride: 2, tile: operand::DEPTH };
    let rows = TileDimension { size: count.into(), stride: 2 * u64::from(stride), tile };
    TensorTile::new(matrix.address(), 2, TilePattern::Bytes128, [along, rows])
}
