//! Fills of device memory.

use super::functions::functions;
use crate::driver::context::DEFAULT_STREAM;
use crate::driver::host::owner_of_mapped;
use crate::driver::process::{Handle, with_current, with_current_stream};
use crate::driver::queue::{StreamId, Until};
use crate::driver::result_code::{Result, ResultCode};
use crate::driver::session::Session;

/// Fills elements in the default stream. Waits for completion if the elements are in host memory.
fn fill(at: u64, pattern: &[u8], count: usize) -> Result<()> {
    with_current(|context| {
        context.fill(DEFAULT_STREAM, at, pattern, count)?;
        if owner_of_mapped(at as usize).is_some() { context.run(Until::Stream(DEFAULT_STREAM)) } else { Ok(()) }
    })
}

/// Fills `height` rows of `width` elements each. Row starts are `pitch` bytes apart.
fn rows(
    context: &mut Session<'_>,
    stream: StreamId,
    at: u64,
    pitch: usize,
    pattern: &[u8],
    [width, height]: [usize; 2],
) -> Result<()> {
    if height > 1 && pattern.len().checked_mul(width).is_none_or(|row| row > pitch) {
        return Err(ResultCode::InvalidValue);
    }
    (0..height).try_for_each(|row| context.fill(stream, at + (row * pitch) as u64, pattern, width))
}

functions! { fill_functions($)
    fn cuMemsetD8_v2(at: u64, value: u8, count: usize) {
        fill(at, &[value], count)
    }

    fn cuMemsetD16_v2(at: u64, value: u16, count: usize) {
        fill(at, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32_v2(at: u64, value: u32, count: usize) {
        fill(at, &value.to_le_bytes(), count)
    }

    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| context.fill(stream, at, &[value], count))
    }

    fn cuMemsetD16Async(at: u64, value: u16, count: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| context.fill(stream, at, &value.to_le_bytes(), count))
    }

    fn cuMemsetD32Async(at: u64, value: u32, count: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| context.fill(stream, at, &value.to_le_bytes(), count))
    }

    fn cuMemsetD2D8_v2(at: u64, pitch: usize, value: u8, width: usize, height: usize) {
        with_current(|context| rows(context, DEFAULT_STREAM, at, pitch, &value.to_le_bytes(), [width, height]))
    }

    fn cuMemsetD2D8Async(at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| {
            rows(context, stream, at, pitch, &value.to_le_bytes(), [width, height])
        })
    }

    fn cuMemsetD2D16_v2(at: u64, pitch: usize, value: u16, width: usize, height: usize) {
        with_current(|context| rows(context, DEFAULT_STREAM, at, pitch, &value.to_le_bytes(), [width, height]))
    }

    fn cuMemsetD2D16Async(at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| {
            rows(context, stream, at, pitch, &value.to_le_bytes(), [width, height])
        })
    }

    fn cuMemsetD2D32_v2(at: u64, pitch: usize, value: u32, width: usize, height: usize) {
        with_current(|context| rows(context, DEFAULT_STREAM, at, pitch, &value.to_le_bytes(), [width, height]))
    }

    fn cuMemsetD2D32Async(at: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| {
            rows(context, stream, at, pitch, &value.to_le_bytes(), [width, height])
        })
    }
}
