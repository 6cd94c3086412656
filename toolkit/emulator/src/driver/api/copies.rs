//! Copies between any memory kinds, 2D and 3D copies, and copies between devices.

use super::argument::array;
use super::functions::functions;
use super::memory::{host, now};
use crate::driver::context::DEFAULT_STREAM;
use crate::driver::process::{self, Handle, parts, with_current, with_current_stream, with_stream};
use crate::driver::queue::{StreamId, Until};
use crate::driver::result_code::{Result, ResultCode};
use crate::driver::session::Session;
use crate::driver::work::Work;
use std::ffi::c_void;

/// Memory kinds, by CUDA's numbers. For `UNIFIED`, the address itself tells the kind.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const UNIFIED: u32 = 4;

/// An address and whether it is on the host.
#[derive(Clone, Copy)]
struct Location {
    address: u64,
    on_host: bool,
}

impl Location {
    fn find(context: &mut Session<'_>, address: u64) -> Self {
        Self { address, on_host: !context.is_on_device(address) }
    }

    fn plus(self, bytes: usize) -> Self {
        Self { address: self.address + bytes as u64, ..self }
    }

    fn pointer(self) -> *const c_void {
        std::ptr::with_exposed_provenance(self.address as usize)
    }
}

/// Copies bytes between two locations in a stream.
///
/// # Safety
/// Host bytes must be valid until the copy is done.
unsafe fn copy(context: &mut Session<'_>, stream: StreamId, to: Location, from: Location, bytes: usize) -> Result<()> {
    match (to.on_host, from.on_host) {
        (false, false) => context.copy(stream, to.address, from.address, bytes),
        // SAFETY: this function's contract: the bytes are valid until the copy is done.
        (false, true) => context.upload(stream, to.address, unsafe { host(from.pointer(), bytes) }?),
        // SAFETY: as above.
        (true, false) => context.download_to(stream, unsafe { host(to.pointer(), bytes) }?, from.address),
        (true, true) => {
            context.run(Until::Stream(stream))?;
            // SAFETY: as above. `read` copies the bytes before they are written, so the ranges may overlap.
            unsafe { host(to.pointer(), bytes)?.write(&host(from.pointer(), bytes)?.read()) };
            Ok(())
        }
    }
}

/// The source or destination of a 2D or 3D copy.
#[derive(Clone, Copy)]
struct Side {
    kind: u32,
    on_host: u64,
    on_device: u64,
    /// The offset of the first byte.
    start: usize,
    /// The distance in bytes from one row to the next, and from one slice to the next.
    pitch: usize,
    slice: usize,
}

impl Side {
    fn place(self, context: &mut Session<'_>) -> Result<Location> {
        let place = match self.kind {
            HOST => Location { address: self.on_host, on_host: true },
            DEVICE => Location { address: self.on_device, on_host: false },
            UNIFIED => Location::find(context, self.on_device),
            _ => return Err(ResultCode::NotSupported), // arrays
        };
        Ok(place.plus(self.start))
    }
}

/// Copies slices of rows. `size` is the bytes per row, the rows per slice and the number of slices.
///
/// # Safety
/// As [`copy`].
unsafe fn rows(context: &mut Session<'_>, stream: StreamId, to: Side, from: Side, size: [usize; 3]) -> Result<()> {
    let [width, height, depth] = size;
    let (target, source) = (to.place(context)?, from.place(context)?);
    for slice in 0..depth {
        for row in 0..height {
            let target = target.plus(slice * to.slice + row * to.pitch);
            let source = source.plus(slice * from.slice + row * from.pitch);
            // SAFETY: this function's contract: host bytes are valid until the copy is done.
            unsafe { copy(context, stream, target, source, width) }?;
        }
    }
    Ok(())
}

/// The source or destination in `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side2D {
    x: usize,
    y: usize,
    kind: u32,
    on_host: usize,
    on_device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy2D {
    from: Side2D,
    to: Side2D,
    width: usize,
    height: usize,
}

impl Side2D {
    fn side(self) -> Side {
        let Self { x, y, kind, on_host, on_device, pitch, .. } = self;
        Side { kind, on_host: on_host as u64, on_device, start: y * pitch + x, pitch, slice: 0 }
    }
}

/// The source or destination in `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    on_host: usize,
    on_device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy3D {
    from: Side3D,
    to: Side3D,
    width: usize,
    height: usize,
    depth: usize,
}

impl Side3D {
    fn side(self) -> Side {
        let Self { x, y, z, kind, on_host, on_device, pitch, height, .. } = self;
        let slice = pitch * height;
        Side { kind, on_host: on_host as u64, on_device, start: z * slice + y * pitch + x, pitch, slice }
    }
}

/// Reads the destination, source and size of a 2D copy.
///
/// # Safety
/// The pointer must be null or point to a copy description.
unsafe fn read_2d(copy: *const Copy2D) -> Result<(Side, Side, [usize; 3])> {
    // SAFETY: this function's contract.
    let [Copy2D { from, to, width, height }] = unsafe { array(copy, 1) }?[..] else {
        return Err(ResultCode::InvalidValue);
    };
    Ok((to.side(), from.side(), [width, height, 1]))
}

/// Reads the destination, source and size of a 3D copy.
///
/// # Safety
/// As [`read_2d`].
unsafe fn read_3d(copy: *const Copy3D) -> Result<(Side, Side, [usize; 3])> {
    // SAFETY: this function's contract.
    let [Copy3D { from, to, width, height, depth }] = unsafe { array(copy, 1) }?[..] else {
        return Err(ResultCode::InvalidValue);
    };
    Ok((to.side(), from.side(), [width, height, depth]))
}

/// Copies from one context's memory to another's. The stream may belong to a third context.
fn between(stream: Handle, to: (Handle, u64), from: (Handle, u64), bytes: usize) -> Result<()> {
    let (there, here) = (parts(to.0).0, parts(from.0).0);
    let own = with_stream(stream, |context, _| Ok(context.id))?;
    for (id, at) in [(there, to.1), (here, from.1)] {
        process::with_id(id, |context| context.check_memory("copy between devices", at, bytes))?;
        process::join(own, id)?;
    }
    let work = Work::PeerCopy { to: (there, to.1), from: (here, from.1), bytes };
    with_stream(stream, |context, stream| context.submit(stream, work))
}

functions! { copy_functions($)
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        now(|context| {
            let (to, from) = (Location::find(context, to), Location::find(context, from));
            // SAFETY: the caller guarantees that the memory is valid until the copy is done.
            unsafe { copy(context, DEFAULT_STREAM, to, from, bytes) }
        })
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| {
            let (to, from) = (Location::find(context, to), Location::find(context, from));
            // SAFETY: the caller guarantees that the memory is valid until the copy is done.
            unsafe { copy(context, stream, to, from, bytes) }
        })
    }

    fn cuMemcpy2D_v2(copy: *const Copy2D) {
        // SAFETY: the caller passes null or a description.
        let (to, from, size) = unsafe { read_2d(copy) }?;
        // SAFETY: the caller guarantees that the memory is valid until the copy is done.
        now(|context| unsafe { rows(context, DEFAULT_STREAM, to, from, size) })
    }

    fn cuMemcpy2DUnaligned_v2(copy: *const Copy2D) {
        // SAFETY: the caller passes null or a description.
        let (to, from, size) = unsafe { read_2d(copy) }?;
        // SAFETY: the caller guarantees that the memory is valid until the copy is done.
        now(|context| unsafe { rows(context, DEFAULT_STREAM, to, from, size) })
    }

    fn cuMemcpy2DAsync_v2(copy: *const Copy2D, stream: Handle) {
        // SAFETY: the caller passes null or a description.
        let (to, from, size) = unsafe { read_2d(copy) }?;
        // SAFETY: the caller guarantees that the memory is valid until the copy is done.
        with_current_stream(stream, |context, stream| unsafe { rows(context, stream, to, from, size) })
    }

    fn cuMemcpy3D_v2(copy: *const Copy3D) {
        // SAFETY: the caller passes null or a description.
        let (to, from, size) = unsafe { read_3d(copy) }?;
        // SAFETY: the caller guarantees that the memory is valid until the copy is done.
        now(|context| unsafe { rows(context, DEFAULT_STREAM, to, from, size) })
    }

    fn cuMemcpy3DAsync_v2(copy: *const Copy3D, stream: Handle) {
        // SAFETY: the caller passes null or a description.
        let (to, from, size) = unsafe { read_3d(copy) }?;
        // SAFETY: the caller guarantees that the memory is valid until the copy is done.
        with_current_stream(stream, |context, stream| unsafe { rows(context, stream, to, from, size) })
    }

    fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) {
        // Earlier work of both contexts must end before the copy.
        for context in [to_context, from_context] {
            process::with_id(parts(context).0, |context| context.synchronize())?;
        }
        between(std::ptr::null_mut(), (to_context, to), (from_context, from), bytes)?;
        with_current(|context| context.synchronize_stream(DEFAULT_STREAM))
    }

    fn cuMemcpyPeerAsync(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle,
    ) {
        between(stream, (to_context, to), (from_context, from), bytes)
    }
}
