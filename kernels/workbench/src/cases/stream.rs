//! Reading memory as fast as possible, as a reference rate for other kernels.

use cuda_std::launch::LaunchShape;
use intrinsics::v_read_stream;

use super::exact;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};

/// Words that each thread of `v_read_stream` reads.
const WORDS: usize = 32;

/// Reads memory from end to end. The device's PTX must contain the kernels of `intrinsics`. On a GPU it reads 256 MiB,
/// more than any cache.
pub fn read_stream(scale: Scale) -> Case {
    let blocks: u32 = if scale == Scale::Full { 8192 } else { 8 };
    let threads = blocks as usize * 256;
    let bytes = 4 * WORDS * threads;
    Case {
        kernel: "v_read_stream",
        shape: format!("{} KiB", bytes / 1024),
        floor: Floor { bytes: bytes as u64, flops: 0 },
        prepare: Box::new(move |gpu| {
            let data: Vec<u32> = (0..(WORDS * threads) as u32).map(|i| i.wrapping_mul(0x9E37_79B9)).collect();
            // A thread's eight vectors are strided over the data, next to the vectors of other threads.
            let own = |i: usize| (0..8).flat_map(move |k| (0..4).map(move |word| 4 * (k * threads + i) + word));
            let truth: Vec<u32> = (0..threads).map(|i| own(i).fold(0, |x, at| x ^ data[at])).collect();
            let out = gpu.alloc::<u32>("out", threads)?;
            let call = v_read_stream { a: gpu.upload("data", &data)?.ptr(), out: out.mut_ptr() };
            Ok(Prepared {
                // SAFETY: each thread has eight vectors to read and one result.
                launch: Box::new(move |gpu| unsafe { gpu.launch(LaunchShape::linear(blocks, 256), call) }),
                error: Box::new(move |gpu| Ok(exact(&gpu.download(out)?, &truth))),
            })
        }),
    }
}
