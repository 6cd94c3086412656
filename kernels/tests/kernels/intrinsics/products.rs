//! `wgmma`: every form, on small integers, whose sums are exact.

use ::intrinsics::*;
use cuda_std::launch::{DevicePtr, DevicePtrMut, KernelCall, LaunchShape};
use cuda_std::vector::Vector;

use crate::frame::gpu::Gpu;
use workbench::number::{ProblemRng, Type};

/// Layout of a factor in the image.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// K-major rows of 64 elements, permuted.
    Rows,
    /// 8 x 8 matrices of 128 bytes, two along K.
    Plain,
    /// MN-major rows of 64 elements, permuted.
    MnMajor,
    /// A in registers, and B in 8 x 8 matrices.
    Registers,
    /// 8 x 8 matrices of 128 bytes, two along K for each product. Has the number of matrices along K.
    Chain(usize),
    /// A in registers and B in MN-major 8 x 8 matrices, for eight products. Has the number of columns.
    ChainOfRegisters(usize),
}

impl Layout {
    /// Returns the byte offset of an element.
    fn at(self, row: usize, k: usize) -> usize {
        let at = match self {
            Layout::Rows => row * 128 + k * 2,
            Layout::Plain | Layout::Registers => row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2,
            Layout::MnMajor => row / 64 * 2048 + k * 128 + row % 64 * 2,
            Layout::Chain(matrices) => row / 8 * (matrices * 128) + k / 8 * 128 + row % 8 * 16 + k % 8 * 2,
            Layout::ChainOfRegisters(columns) => k / 8 * (columns * 16) + row / 8 * 128 + k % 8 * 16 + row % 8 * 2,
        };
        if matches!(self, Layout::Rows | Layout::MnMajor) { at ^ (at / 128 % 8 * 16) } else { at }
    }

    /// Returns the number of elements along K.
    fn depth(self) -> usize {
        match self {
            Layout::Rows => 64,
            Layout::Plain | Layout::MnMajor | Layout::Registers => 16,
            Layout::Chain(matrices) => 8 * matrices,
            Layout::ChainOfRegisters(_) => 128,
        }
    }

    fn is_from_registers(self) -> bool {
        matches!(self, Layout::Registers | Layout::ChainOfRegisters(_))
    }
}

/// The image, its bytes, the registers if A is in registers, and the output.
type Arguments = (DevicePtr<Vector>, u32, DevicePtr<[u32; 4]>, DevicePtrMut<[f32; 4]>);

/// Makes the call of a kernel.
type Form = fn(Arguments) -> KernelCall;

pub fn every_form(gpu: &mut Gpu) {
    macro_rules! forms {
        ($($layout:expr, $n:literal $f16:ident $bf16:ident;)*) => {$(
            for (ty, call) in [
                (Type::F16, (|(image, bytes, _, out)| $f16 { image, bytes, out }.into()) as Form),
                (Type::Bf16, |(image, bytes, _, out)| $bf16 { image, bytes, out }.into()),
            ] {
                check(gpu, ty, $layout, $n, call);
            }
        )*};
    }
    forms! {
        Layout::Rows, 8 v_wgmma_8_f16 v_wgmma_8_bf16;
        Layout::Rows, 16 v_wgmma_16_f16 v_wgmma_16_bf16;
        Layout::Rows, 24 v_wgmma_24_f16 v_wgmma_24_bf16;
        Layout::Rows, 32 v_wgmma_32_f16 v_wgmma_32_bf16;
        Layout::Rows, 64 v_wgmma_64_f16 v_wgmma_64_bf16;
        Layout::Rows, 128 v_wgmma_128_f16 v_wgmma_128_bf16;
        Layout::Rows, 192 v_wgmma_192_f16 v_wgmma_192_bf16;
        Layout::Rows, 256 v_wgmma_256_f16 v_wgmma_256_bf16;
        Layout::Plain, 64 v_wgmma_plain_f16 v_wgmma_plain_bf16;
        Layout::MnMajor, 64 v_wgmma_mn_major_f16 v_wgmma_mn_major_bf16;
        Layout::Chain(8), 128 v_wgmma_short_chain_128_f16 v_wgmma_short_chain_128_bf16;
        Layout::Chain(16), 128 v_wgmma_chain_128_f16 v_wgmma_chain_128_bf16;
    }
    macro_rules! forms_from_registers {
        ($($layout:expr, $n:literal $f16:ident $bf16:ident;)*) => {$(
            for (ty, call) in [
                (Type::F16, (|(image, bytes, registers, out)| $f16 { image, bytes, registers, out }.into()) as Form),
                (Type::Bf16, |(image, bytes, registers, out)| $bf16 { image, bytes, registers, out }.into()),
            ] {
                check(gpu, ty, $layout, $n, call);
            }
        )*};
    }
    forms_from_registers! {
        Layout::Registers, 64 v_wgmma_registers_f16 v_wgmma_registers_bf16;
        Layout::ChainOfRegisters(64), 64 v_wgmma_chain_64_registers_f16 v_wgmma_chain_64_registers_bf16;
        Layout::ChainOfRegisters(128), 128 v_wgmma_chain_128_registers_f16 v_wgmma_chain_128_registers_bf16;
    }
}

fn check(gpu: &mut Gpu, ty: Type, layout: Layout, columns: usize, call: Form) {
    let depth = layout.depth();
    let mut random = ProblemRng(columns as u64);
    let mut integers = |n: usize| (0..n).map(|_| random.below(17) as f64 - 8.0).collect::<Vec<_>>();
    let (a, b) = (integers(64 * depth), integers(columns * depth));
    let second = SECOND as usize;
    let mut image = vec![0u8; second + (columns * depth * 2).max(2048)];
    for k in 0..depth {
        let mut put = |at: usize, value: f64| image[at..at + 2].copy_from_slice(&ty.bits(value).to_le_bytes());
        if !layout.is_from_registers() {
            (0..64).for_each(|row| put(layout.at(row, k), a[row * depth + k]));
        }
        (0..columns).for_each(|column| put(second + layout.at(column, k), b[column * depth + k]));
    }
    let pair = |row: usize, k: usize| {
        let [low, high] = [0, 1].map(|i| u32::from(ty.bits(a[row * depth + k + i])));
        low | high << 16
    };
    let registers: Vec<[u32; 4]> = (0..depth / 16 * 128)
        .map(|i| {
            let (step, thread) = (i / 128, i % 128);
            let (row, k) = (thread / 32 * 16 + thread % 32 / 4, step * 16 + thread % 4 * 2);
            [pair(row, k), pair(row + 8, k), pair(row, k + 8), pair(row + 8, k + 8)]
        })
        .collect();
    let out = gpu.alloc::<[f32; 4]>("out", 128 * columns / 8);
    let bytes = image.len() as u32;
    let call =
        call((gpu.upload("image", &image).ptr(), bytes, gpu.upload("registers", &registers).ptr(), out.mut_ptr()));
    // SAFETY: arrays have the sizes that the kernel requires.
    unsafe { gpu.launch(LaunchShape::linear(1, 128).with_shared(bytes + 1024), call) };
    let found = gpu.download(out);
    for row in 0..64 {
        for column in 0..columns {
            let dot: f64 = (0..depth).map(|k| a[row * depth + k] * b[column * depth + k]).sum();
            let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            let sum = found[column / 8 * 128 + thread][row % 16 / 8 * 2 + column % 2];
            assert_eq!(f64::from(sum), 2.0 * dot, "{ty:?}, {layout:?}, {columns} columns: row {row}, column {column}");
        }
    }
}
