//! Tensor maps, which the driver encodes for a launch.

use crate::code;
use crate::context::Context;
use crate::error::{Error, Result};
use cuda_std::launch::TensorTile;
use cuda_std::ptx::pattern::TilePattern;
use cust::sys::CUdeviceptr;
use std::ffi::{c_uint, c_void};

/// The driver's `CUtensorMap`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Encoded([u64; 16]);

/// The driver function that encodes tensor maps, available since CUDA 12.0.
const ENCODE: &str = "cuTensorMapEncodeTiled";

type Encode = unsafe extern "C" fn(
    map: *mut Encoded,
    element: c_uint,
    rank: c_uint,
    address: CUdeviceptr,
    sizes: *const u64,
    strides: *const u64,
    tile: *const u32,
    element_strides: *const u32,
    interleave: c_uint,
    swizzle: c_uint,
    promotion: c_uint,
    fill: c_uint,
) -> c_uint;

/// Encodes the tensor map of a tensor and its tile shape.
pub(crate) fn encode(context: &Context, tensor: &TensorTile) -> Result<Encoded> {
    let Some(address) = context.driver().lookup(ENCODE) else { return Err(Error::OldDriver(ENCODE)) };
    // SAFETY: the driver's function of this name has this signature.
    let encode = unsafe { std::mem::transmute::<*const c_void, Encode>(address) };
    // Use unsigned integer types, because copies only move bits.
    let element = match tensor.element_bytes() {
        1 => 0,
        2 => 1,
        4 => 2,
        _ => 4,
    };
    let dimensions = tensor.dimensions();
    let sizes: Vec<u64> = dimensions.iter().map(|dimension| dimension.size).collect();
    let strides: Vec<u64> = dimensions.iter().skip(1).map(|dimension| dimension.stride).collect();
    let tile: Vec<u32> = dimensions.iter().map(|dimension| dimension.tile).collect();
    let swizzle = match tensor.pattern() {
        TilePattern::Plain => 0,
        TilePattern::Bytes32 => 1,
        TilePattern::Bytes64 => 2,
        TilePattern::Bytes128 => 3,
    };
    let each = [1; 5];
    let mut map = Encoded([0; 16]);
    const NO_INTERLEAVE: c_uint = 0;
    // Each L2 access fetches 128 bytes.
    const PROMOTE_128_BYTES: c_uint = 2;
    const FILL_ZEROS: c_uint = 0;
    context.call("encoding of a tensor map", || {
        // SAFETY: the pointer is valid for the map, and each list has one number per dimension, the strides one fewer.
        // The tensor's address is not dereferenced.
        code::check(code::result_of(unsafe {
            encode(
                &mut map,
                element,
                dimensions.len() as c_uint,
                tensor.address(),
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                each.as_ptr(),
                NO_INTERLEAVE,
                swizzle,
                PROMOTE_128_BYTES,
                FILL_ZEROS,
            )
        }))
    })?;
    Ok(map)
}
