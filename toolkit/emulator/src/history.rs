//! The writes to a buffer in one launch: which warp wrote which bytes.

/// Bytes of a line.
pub(crate) const LINE: usize = 128;
/// Lines of a chunk. A chunk is allocated on the first write to it.
const CHUNK: usize = 32;

/// A write by lanes of one warp in one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Write {
    /// The number of the block's cluster among all launches that run at the same time.
    pub block: u32,
    pub epoch: u32,
    pub lanes: u32,
    pub warp: u16,
    /// Whether it was atomic, volatile or relaxed. Such accesses do not race with each other.
    pub strong: bool,
}

#[derive(Clone, Debug, Default)]
struct Line {
    /// The bytes that were written, one bit each.
    bytes: u128,
    /// The write that wrote all of them, while `each` is `None`.
    write: Write,
    /// The last write of each byte, if no single warp and epoch wrote them all.
    each: Option<Box<[Write; LINE]>>,
}

impl Line {
    /// Returns the last writes of some of the bytes.
    fn writes(&self, bytes: u128) -> impl Iterator<Item = &Write> {
        let written = self.bytes & bytes;
        let one = (self.each.is_none() && written != 0).then_some(&self.write);
        let each = self.each.iter().flat_map(move |each| set_bits(written).map(|byte| &each[byte]));
        one.into_iter().chain(each)
    }

    fn record(&mut self, bytes: u128, write: Write) {
        let joins = self.bytes == 0 || Write { lanes: write.lanes, ..self.write } == write;
        if self.each.is_none() && (joins || self.bytes & !bytes == 0) {
            self.write = Write { lanes: if joins { self.write.lanes | write.lanes } else { write.lanes }, ..write };
        } else {
            let each = self.each.get_or_insert_with(|| Box::new([self.write; LINE]));
            set_bits(bytes).for_each(|byte| each[byte] = write);
        }
        self.bytes |= bytes;
    }
}

fn set_bits(mask: u128) -> impl Iterator<Item = usize> {
    (0..LINE).filter(move |byte| mask >> byte & 1 == 1)
}

/// The writes to a buffer in the current launch.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    chunks: Vec<Option<Box<[Line]>>>,
}

impl History {
    /// Removes all writes.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Returns whether the launch has not written to the buffer.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the first of the last writes of some bytes of a line that `is_before` rejects.
    pub fn unordered(&self, line: usize, bytes: u128, is_before: impl Fn(&Write) -> bool) -> Option<Write> {
        let line = &self.chunks.get(line / CHUNK)?.as_ref()?[line % CHUNK];
        line.writes(bytes).find(|write| !is_before(write)).copied()
    }

    /// Copies the writes of some bytes of a line from another history.
    pub fn take_over(&mut self, other: &History, line: usize, bytes: u128) {
        let Some(Some(lines)) = other.chunks.get(line / CHUNK) else { return };
        let from = &lines[line % CHUNK];
        match &from.each {
            _ if from.bytes & bytes == 0 => {}
            None => self.record(line, from.bytes & bytes, from.write),
            Some(each) => set_bits(from.bytes & bytes).for_each(|byte| self.record(line, 1 << byte, each[byte])),
        }
    }

    /// Records a write of some bytes of a line.
    pub fn record(&mut self, line: usize, bytes: u128, write: Write) {
        let chunk = line / CHUNK;
        if chunk >= self.chunks.len() {
            self.chunks.resize(chunk + 1, None);
        }
        // Collecting creates the lines directly on the heap, without a copy from the stack.
        let lines = self.chunks[chunk].get_or_insert_with(|| (0..CHUNK).map(|_| Line::default()).collect());
        lines[line % CHUNK].record(bytes, write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_own_writers() {
        let write = |block, epoch| Write { block, epoch, lanes: 1, ..Write::default() };
        let mut history = History::default();
        assert_eq!(history.unordered(40, !0, |_| false), None);
        history.record(40, 0xff, write(1, 1));
        history.record(40, 0xff00, write(1, 1));
        assert_eq!(history.unordered(40, 0xf0000, |_| false), None);
        assert_eq!(history.unordered(40, 0xf00, |_| false), Some(write(1, 1)));
        history.record(40, 0xf, write(2, 1));
        let writer = |bytes| history.unordered(40, bytes, |_| false).map(|write| write.block);
        assert_eq!([writer(1), writer(0xf0), writer(0x8000), writer(0x10000)], [Some(2), Some(1), Some(1), None]);
        assert_eq!(history.unordered(40, 0xff, |write| write.block == 2), Some(write(1, 1)));
    }
}
