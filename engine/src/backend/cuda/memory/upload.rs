//! Uploading weights to the device: from mapped files through pinned memory.

use launch::{Context, DeviceBuffer, Event, PinnedBuffer, Stream};
use rayon::prelude::*;

/// Bytes of each of the two staging buffers. One is filled while the device reads the other.
const STAGING: usize = 32 << 20;

/// Bytes that a thread copies at a time.
const PIECE: usize = 1 << 20;

/// Two pinned buffers that are used alternately.
#[derive(Debug)]
pub struct Upload {
    buffers: [(PinnedBuffer<u8>, Event); 2],
    next: usize,
}

impl Upload {
    /// Allocates the buffers for a device.
    ///
    /// # Errors
    /// [`launch::Error`] if there is not enough memory for them.
    pub fn new(context: &Context) -> launch::Result<Self> {
        let buffer = || Ok((PinnedBuffer::zeroed(context, STAGING)?, Event::new(context)?));
        Ok(Upload { buffers: [buffer()?, buffer()?], next: 0 })
    }

    /// Copies `parts`, one after the other, to `to`, which must be large enough. When this returns, the last transfers
    /// from the staging buffers may still be in progress.
    ///
    /// # Errors
    /// [`launch::Error`] if a driver call fails.
    pub fn copy(&mut self, stream: &Stream, parts: &[&[u8]], to: &DeviceBuffer<u8>) -> launch::Result<()> {
        let mut pieces = parts.iter().flat_map(|part| part.chunks(PIECE)).peekable();
        let mut done = 0;
        while pieces.peek().is_some() {
            let (staging, free) = &mut self.buffers[self.next];
            free.synchronize()?;
            let (mut room, mut len) = (&mut staging[..], 0);
            let mut copies = Vec::new();
            while let Some(piece) = pieces.next_if(|piece| piece.len() <= room.len()) {
                let (place, rest) = std::mem::take(&mut room).split_at_mut(piece.len());
                copies.push((place, piece));
                len += piece.len();
                room = rest;
            }
            // In parallel, because the first access to a page of a mapped file takes longer than copying the page.
            copies.into_par_iter().for_each(|(place, piece)| place.copy_from_slice(piece));
            // SAFETY: the buffer is not accessed again before its event.
            unsafe { stream.upload_async(&staging[..len], to.slice(done..done + len)) }?;
            free.record(stream)?;
            done += len;
            self.next = 1 - self.next;
        }
        Ok(())
    }
}
