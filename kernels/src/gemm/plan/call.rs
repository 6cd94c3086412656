//! The arguments of a planned launch.

use cuda_std::launch::{DevicePtr, KernelCall, TensorTile, TileDimension};
use cuda_std::ptx::pattern::TilePattern;

use super::{GemmKernel, GemmPlan, NormOperands, Operands, Product};
use crate::element::ElementType;
use crate::gemm::decode::gemm_decode;
use crate::gemm::fragment::is_light;
use crate::gemm::gemv::gemv;
use crate::gemm::hopper::decode::gemm_hopper_decode;
use crate::gemm::hopper::{self, gemm_hopper};
use crate::gemm::operand;
use crate::gemm::prefill::gemm;
use crate::with_element;

impl GemmPlan {
    /// Returns the kernel with its arguments, for elements of type `element`.
    pub fn call(self, element: ElementType, operands: Operands) -> KernelCall {
        with_element!(element, T => match self.kernel {
            GemmKernel::Gemv(1) => self.gemv(operands).instance::<T, 1>(),
            GemmKernel::Gemv(2) => self.gemv(operands).instance::<T, 2>(),
            GemmKernel::Gemv(_) => self.gemv(operands).instance::<T, 4>(),
            GemmKernel::Decode(8) => self.tokens(operands).instance::<T, 8>(),
            GemmKernel::Decode(16) => self.tokens(operands).instance::<T, 16>(),
            GemmKernel::Decode(32) => self.tokens(operands).instance::<T, 32>(),
            GemmKernel::Decode(_) => self.tokens(operands).instance::<T, 64>(),
            GemmKernel::Prefill(128) => self.prefill(operands).instance::<T, 128>(),
            GemmKernel::Prefill(_) => self.prefill(operands).instance::<T, 256>(),
            GemmKernel::Hopper(128) | GemmKernel::HopperPairs(128) => self.hopper(operands, 128).instance::<T, 128>(),
            GemmKernel::Hopper(_) | GemmKernel::HopperPairs(_) => self.hopper(operands, 256).instance::<T, 256>(),
            GemmKernel::HopperDecode(8) => self.hopper_decode(operands, 8).instance::<T, 8>(),
            GemmKernel::HopperDecode(16) => self.hopper_decode(operands, 16).instance::<T, 16>(),
            GemmKernel::HopperDecode(32) => self.hopper_decode(operands, 32).instance::<T, 32>(),
            GemmKernel::HopperDecode(_) => self.hopper_decode(operands, 64).instance::<T, 64>(),
        })
    }

    fn gemv(self, operands: Operands) -> gemv {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters, norm } = operands;
        let NormOperands { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals } = norm;
        let Product { m, n, k, epilogue } = self.product;
        gemv {
            x,
            weight,
            bias,
            out,
            workspace,
            counters,
            x_stride,
            out_stride,
            m,
            n,
            k,
            epilogue: epilogue.bits(),
            norm: norm as u32,
            norm_weight,
            norm_bias,
            normed,
            eps,
            arrivals,
        }
    }

    fn tokens(self, operands: Operands) -> gemm_decode {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters, norm } = operands;
        let NormOperands { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals } = norm;
        let Product { m, n, k, epilogue } = self.product;
        gemm_decode {
            x,
            weight,
            bias,
            out,
            workspace,
            counters,
            x_stride,
            out_stride,
            m,
            n,
            k,
            epilogue: epilogue.bits(),
            norm: norm as u32,
            norm_weight,
            norm_bias,
            normed,
            eps,
            arrivals,
        }
    }

    /// Returns the arguments of the instance for `tokens` tokens, which takes `x` and the weight as tensors.
    fn hopper_decode(self, operands: Operands, tokens: u32) -> gemm_hopper_decode {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters, norm } = operands;
        let NormOperands { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals } = norm;
        let Product { m, n, k, epilogue } = self.product;
        gemm_hopper_decode {
            x: rows(x, m, k, x_stride, tokens),
            weight: rows(weight, n, k, k, hopper::decode::ROWS),
            bias,
            out,
            workspace,
            counters,
            out_stride,
            m,
            n,
            k,
            epilogue: epilogue.bits(),
            norm: norm as u32,
            norm_weight,
            norm_bias,
            normed,
            eps,
            arrivals,
        }
    }

    fn prefill(self, operands: Operands) -> gemm {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters, .. } = operands;
        let Product { m, n, k, epilogue } = self.product;
        let epilogue = epilogue.bits();
        gemm { x, weight, bias, out, workspace, counters, x_stride, out_stride, m, n, k, epilogue }
    }

    /// Returns the arguments of the instance for tiles of `width` columns, which takes the operands as tensors. If the
    /// output can be stored by tensor copies, it is a tensor too.
    fn hopper(self, operands: Operands, width: u32) -> gemm_hopper {
        let Operands { x, x_stride, weight, bias, out, out_stride, workspace, counters, .. } = operands;
        let Product { m, n, k, epilogue } = self.product;
        let (columns, mut epilogue) = (epilogue.columns(n), epilogue.bits());
        let (x, weight) = (rows(x, m, k, x_stride, hopper::ROWS), rows(weight, n, k, k, width / self.together()));
        let mut tiles = weight;
        if is_light(epilogue)
            && out.address().is_multiple_of(16)
            && out_stride.is_multiple_of(8)
            && columns.is_multiple_of(8)
        {
            let out = DevicePtr::from_address(out.address());
            tiles = rows(out, m, columns, out_stride, hopper::GROUP_ROWS);
            epilogue |= hopper::TILED;
        }
        gemm_hopper { x, weight, tiles, bias, out, workspace, counters, out_stride, m, n, k, epilogue }
    }
}

/// Describes a matrix `[count][k]` whose rows are `stride` elements apart, in tiles of `tile` rows.
fn rows(matrix: DevicePtr<u16>, count: u32, k: u32, stride: u32, tile: u32) -> TensorTile {
    let along = TileDimension { size: k.into(), stride: 2, tile: operand::DEPTH };
    let rows = TileDimension { size: count.into(), stride: 2 * u64::from(stride), tile };
    TensorTile::new(matrix.address(), 2, TilePattern::Bytes128, [along, rows])
}
