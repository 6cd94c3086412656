//! Tensor maps for bulk tensor copies.

use super::argument::{Out, array};
use super::functions::functions;
use crate::driver::process::with_current;
use crate::driver::result_code::ResultCode;
use crate::tensor_map::{Swizzle, TensorMap};

/// The most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 5;

/// The size in bytes of an element type, by CUDA's number.
fn element_bytes(ty: u32) -> Option<usize> {
    Some(match ty {
        0 => 1,                        // u8
        1 | 6 | 9 => 2,                // u16, f16, bf16
        2 | 3 | 7 | 10 | 11 | 12 => 4, // u32, i32, f32 and f32 variants
        4 | 5 | 8 => 8,                // u64, i64, f64
        _ => return None,
    })
}

functions! { tensor_functions($)
    fn cuTensorMapEncodeTiled(
        map: Out<[u8; TensorMap::BYTES]>, element: u32, rank: u32, base: u64, sizes: *const u64, strides: *const u64,
        tile: *const u32, element_strides: *const u32, interleave: u32, swizzle: u32, _promotion: u32, fill: u32,
    ) {
        if !(1..=MOST_DIMENSIONS).contains(&rank) {
            return Err(ResultCode::InvalidValue);
        }
        let (rank, element_bytes) = (rank as usize, element_bytes(element).ok_or(ResultCode::InvalidValue)?);
        // SAFETY: the caller passes one number per dimension in each list, and one fewer in the list of strides.
        let (dimensions, strides, tile, element_strides) =
            unsafe { (array(sizes, rank)?, array(strides, rank - 1)?, array(tile, rank)?, array(element_strides, rank)?) };
        // Element strides, interleaving and NaN fill are not supported.
        if element_strides.iter().any(|&stride| stride != 1) || interleave != 0 || fill != 0 {
            return Err(ResultCode::NotSupported);
        }
        let swizzle = match swizzle {
            0 => Swizzle::None,
            1 => Swizzle::Bytes32,
            2 => Swizzle::Bytes64,
            3 => Swizzle::Bytes128,
            _ => return Err(ResultCode::NotSupported),
        };
        let tensor = TensorMap { base, element_bytes, dimensions, strides, tile, swizzle };
        match tensor.encode() {
            Ok(bytes) => map.put(bytes),
            Err(why) => with_current(|context| {
                Err(context.refuse("encoding of a tensor map", why))
            }),
        }
    }
    fn cuTensorMapReplaceAddress(map: *mut [u8; TensorMap::BYTES], base: u64) {
        // SAFETY: the caller passes null or a map.
        let [bytes] = unsafe { array(map.cast_const(), 1) }?[..] else { return Err(ResultCode::InvalidValue) };
        let tensor = TensorMap::decode(&bytes).ok_or(ResultCode::InvalidValue)?;
        let bytes = TensorMap { base, ..tensor }.encode().map_err(|_| ResultCode::InvalidValue)?;
        // SAFETY: the pointer points to a map. It is not null, since `array` has read it.
        unsafe { map.write_unaligned(bytes) };
        Ok(())
    }
}
