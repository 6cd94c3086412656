//! Global memory: named buffers with gaps between them, each with a shadow that knows which bytes were written.

use crate::fault::{Checked, FaultKind, Violation};
use crate::history::History;

/// An address on the device.
pub type DeviceAddress = u64;

/// The lowest device address, which looks like that of a real device.
const BASE: u64 = 0x7f40_0000_0000;
/// A buffer owns whole pages of this size, so that any address names at most one buffer.
const PAGE_BITS: u32 = 21;
/// Distance of a buffer's first byte from its first page.
const FRONT_GAP: u64 = 1 << 16;

/// A set of small numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Self {
        Self(vec![0; len / 64 + 1])
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    #[inline(always)]
    pub fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// Parts of a range: word and mask.
    #[inline(always)]
    fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = at + len;
        (at / 64..end.div_ceil(64)).map(move |word| {
            let (from, to) = (at.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
            (word, (u64::MAX >> (64 - to)) & (u64::MAX << from))
        })
    }

    #[inline(always)]
    pub fn insert_range(&mut self, at: usize, len: usize) {
        for (word, mask) in Self::parts(at, len) {
            self.0[word] |= mask;
        }
    }

    #[inline(always)]
    pub fn contains_range(&self, at: usize, len: usize) -> bool {
        Self::parts(at, len).all(|(word, mask)| self.0[word] & mask == mask)
    }

    /// The same for a range within one aligned group of at most 32.
    #[inline(always)]
    pub fn contains_small(&self, at: usize, len: usize) -> bool {
        let mask = (1u64 << len) - 1;
        self.0[at / 64] >> (at % 64) & mask == mask
    }

    #[inline(always)]
    pub fn insert_small(&mut self, at: usize, len: usize) {
        self.0[at / 64] |= ((1u64 << len) - 1) << (at % 64);
    }
}

/// A buffer of device memory.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub name: String,
    pub base: u64,
    pub data: Vec<u8>,
    /// Bytes something wrote.
    pub written: Bits,
    /// Sectors the current launch touched.
    pub touched: Bits,
    /// Whether it touched any.
    pub used: bool,
    /// Writes of the current launch.
    pub history: History,
    pub live: bool,
}

/// All of the device's buffers.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub buffers: Vec<Buffer>,
    /// Buffer of each page, counted from one.
    pages: Vec<u32>,
}

impl Memory {
    pub fn allocate(&mut self, name: &str, bytes: usize) -> DeviceAddress {
        let first = self.pages.len() as u64;
        let pages = (FRONT_GAP + bytes as u64).div_ceil(1 << PAGE_BITS) + 1; // the last page is a gap at least in part
        let base = BASE + (first << PAGE_BITS) + FRONT_GAP;
        self.pages.resize((first + pages) as usize, self.buffers.len() as u32 + 1);
        self.buffers.push(Buffer {
            name: name.to_string(),
            base,
            // If reads of unwritten bytes are not checked, the pattern shows them.
            data: vec![0xcd; bytes],
            written: Bits::new(bytes),
            touched: Bits::new(bytes / 32 + 2),
            used: false,
            history: History::default(),
            live: true,
        });
        base
    }

    /// The index of the buffer whose pages an address lies in.
    #[inline(always)]
    pub fn find(&self, address: u64) -> Option<usize> {
        let page = address.wrapping_sub(BASE) >> PAGE_BITS;
        let index = *self.pages.get(usize::try_from(page).ok()?)?;
        Some(index as usize - 1)
    }

    /// Checks one access, and gives the index of its buffer and its offset there.
    pub fn locate(&self, address: u64, bytes: usize) -> Checked<(usize, usize)> {
        let Some(index) = self.find(address) else {
            let message = format!("{bytes} bytes at {address:#x}, which is in no buffer");
            return Err(Violation::new(FaultKind::OutOfBounds, message).address(address));
        };
        let buffer = &self.buffers[index];
        let fault =
            |message| Err(Violation::new(FaultKind::OutOfBounds, message).address(address).buffer(&buffer.name));
        if !buffer.live {
            return fault(format!("{bytes} bytes in `{}`, which was freed", buffer.name));
        }
        let size = buffer.data.len() as u64;
        if address < buffer.base {
            return fault(format!("{bytes} bytes {} before the start of `{}`", buffer.base - address, buffer.name));
        }
        let offset = address - buffer.base;
        if offset.saturating_add(bytes as u64) > size {
            return fault(format!("{bytes} bytes at offset {offset} of `{}`, which has {size} bytes", buffer.name));
        }
        Ok((index, offset as usize))
    }

    /// Notes that a launch touches a sector, perhaps of the buffer that `near` names. Returns the buffer.
    #[inline(always)]
    pub fn touch(&mut self, sector: u64, near: Option<usize>) -> Option<usize> {
        let address = sector << 5;
        let inside = |index: &usize| {
            let buffer = &self.buffers[*index];
            address + 32 > buffer.base && address < buffer.base + buffer.data.len() as u64
        };
        let found = near.filter(inside).or_else(|| self.find(address).filter(inside))?;
        let buffer = &mut self.buffers[found];
        buffer.used = true;
        buffer.touched.insert((address.saturating_sub(buffer.base) >> 5) as usize);
        Some(found)
    }

    pub fn start_launch(&mut self) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.live && buffer.used) {
            buffer.touched.clear();
            buffer.used = false;
            buffer.history.clear();
        }
    }

    pub fn distinct_sectors(&self) -> u64 {
        self.buffers.iter().filter(|buffer| buffer.live && buffer.used).map(|buffer| buffer.touched.count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bits() {
        let mut bits = Bits::new(300);
        bits.insert_range(60, 140);
        assert!(bits.contains_range(60, 140) && !bits.contains_range(59, 2) && !bits.contains_range(190, 11));
        assert_eq!(bits.count(), 140);
        bits.insert_range(5, 0);
        assert_eq!(bits.count(), 140);
    }

    #[test]
    fn addresses_name_one_buffer_or_none() {
        let mut memory = Memory::default();
        let (a, b) = (memory.allocate("a", 100), memory.allocate("b", 3 << 21));
        assert_eq!(memory.locate(a + 96, 4).unwrap(), (0, 96));
        assert_eq!(memory.locate(b + (3 << 21) - 8, 8).unwrap(), (1, (3 << 21) - 8));
        assert!(memory.locate(a + 97, 4).unwrap_err().message.contains("offset 97 of `a`, which has 100 bytes"));
        assert!(memory.locate(b - 4, 4).unwrap_err().message.contains("4 before the start of `b`"));
        assert_eq!(memory.locate(0, 4).unwrap_err().kind, FaultKind::OutOfBounds);
        assert_eq!(memory.locate(u64::MAX, 4).unwrap_err().kind, FaultKind::OutOfBounds);
    }
}
