//! Global memory: named buffers with gaps between them. Each buffer records which of its bytes were written.
//!
//! Devices that access each other's memory share one [`Memory`]. Each has its own address area there.

use crate::bits::Bits;
use crate::fault::{Checked, FaultKind, Violation};
use crate::history::History;
use crate::host_bytes::HostBytes;
use crate::unfinished::Unfinished;

/// An address on the device.
pub type DeviceAddress = u64;

/// The lowest device address. All areas are below the addresses that programs use on common systems, because kernels
/// may access page-locked host memory at its own address.
const BASE: u64 = 0x1000_0000_0000;
/// The binary logarithm of the bytes of an area.
const AREA_BITS: u32 = 38;
/// The number of distinct areas. Area 256 has the addresses of area 0 again.
const AREAS: u64 = 256;
/// The binary logarithm of the bytes of a page. A buffer owns whole pages, so that any address belongs to at most one
/// buffer.
const PAGE_BITS: u32 = 21;
/// Bytes from the start of a buffer's first page to its first byte.
const FRONT_GAP: u64 = 1 << 16;

/// A buffer of device memory.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub name: String,
    pub base: u64,
    pub data: Vec<u8>,
    /// The bytes that were written.
    pub written: Bits,
    /// Sectors that the current launch touched.
    pub touched: Bits,
    /// Sectors that the current launch stored to since its memory was last forked.
    pub stored: Bits,
    /// Whether the current launch touched any sector.
    pub used: bool,
    /// Writes of the current launch.
    pub history: History,
    /// Accesses of earlier launches that may not have ended, if the current launch is a dependent one.
    pub unfinished: Unfinished,
    pub live: bool,
    /// The number of the device that owns it.
    pub device: usize,
    /// The page-locked host memory that the buffer mirrors. `data` is a copy of it.
    pub host: Option<HostBytes>,
}

impl Buffer {
    /// Frees the bytes. The buffer's addresses are never reused.
    pub fn free(&mut self) {
        self.live = false;
        self.data = Vec::new();
        self.written = Bits::default();
        self.touched = Bits::default();
        self.stored = Bits::default();
        self.history = History::default();
        self.unfinished = Unfinished::default();
    }
}

/// The address area of a device.
#[derive(Clone, Debug)]
struct Area {
    base: u64,
    /// The buffer of each page, counted from one. 0 means none.
    pages: Vec<u32>,
    /// The devices whose memory it may access, itself included. Each has a bit.
    reach: u64,
}

/// All buffers of one device, or of several devices that share an address space.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub buffers: Vec<Buffer>,
    /// The area of each device.
    areas: Vec<Area>,
    /// Indices of the buffers that mirror host memory.
    host_buffers: Vec<usize>,
    /// The current device, which allocates and accesses memory.
    device: usize,
    /// The current device's [`Area::reach`].
    reach: u64,
    /// Whether a thread of the current launch has waited for the earlier launches, or all its threads come after them
    /// anyway.
    pub last_waited: bool,
}

impl Memory {
    /// Creates the memory of one device. Devices in different areas have different addresses.
    pub fn new(area: u64) -> Self {
        let base = BASE + ((area % AREAS) << AREA_BITS);
        let areas = vec![Area { base, pages: Vec::new(), reach: 1 }];
        Self { buffers: Vec::new(), areas, host_buffers: Vec::new(), device: 0, reach: 1, last_waited: true }
    }

    /// Sets the current device, which allocates and accesses memory from now on.
    pub fn enter(&mut self, device: usize) {
        (self.device, self.reach) = (device, self.areas[device].reach);
    }

    /// Allows a device to access another's memory, or forbids it.
    pub fn set_reach(&mut self, device: usize, other: usize, reach: bool) {
        let bits = &mut self.areas[device].reach;
        *bits = if reach { *bits | 1 << other } else { *bits & !(1 << other) };
    }

    /// Returns whether a device may access another's memory.
    pub fn reaches(&self, device: usize, other: usize) -> bool {
        self.areas[device].reach >> other & 1 == 1
    }

    /// Takes over all buffers of another memory. Its devices are numbered after the devices here.
    pub fn absorb(&mut self, other: Memory) {
        let (buffers, devices) = (self.buffers.len() as u32, self.areas.len());
        self.areas.extend(other.areas.into_iter().map(|area| Area {
            pages: area.pages.into_iter().map(|index| if index == 0 { 0 } else { index + buffers }).collect(),
            reach: area.reach << devices,
            ..area
        }));
        self.host_buffers.extend(other.host_buffers.into_iter().map(|index| index + buffers as usize));
        self.buffers
            .extend(other.buffers.into_iter().map(|buffer| Buffer { device: buffer.device + devices, ..buffer }));
    }

    /// Returns whether any buffer mirrors host memory.
    pub fn has_host(&self) -> bool {
        !self.host_buffers.is_empty()
    }

    /// Returns whether the two memories have an address area in common.
    pub fn overlaps(&self, other: &Memory) -> bool {
        self.areas.iter().any(|area| other.areas.iter().any(|other| area.base == other.base))
    }

    /// Frees the buffers of a device. Host memory belongs to no device and stays.
    pub fn clear(&mut self, device: usize) {
        let own = |buffer: &&mut Buffer| buffer.device == device && buffer.host.is_none();
        self.buffers.iter_mut().filter(own).for_each(Buffer::free);
    }

    fn add(&mut self, name: &str, base: u64, bytes: usize, host: Option<HostBytes>) {
        self.buffers.push(Buffer {
            name: name.to_string(),
            base,
            // If reads of unwritten bytes are not checked, this pattern makes them visible.
            data: vec![0xcd; bytes],
            written: Bits::new(bytes),
            touched: Bits::new(bytes / 32 + 2),
            stored: Bits::new(bytes / 32 + 2),
            used: false,
            history: History::default(),
            unfinished: Unfinished::default(),
            live: true,
            device: self.device,
            host,
        });
    }

    pub fn allocate(&mut self, name: &str, bytes: usize) -> DeviceAddress {
        let area = &mut self.areas[self.device];
        let first = area.pages.len() as u64;
        let pages = (FRONT_GAP + bytes as u64).div_ceil(1 << PAGE_BITS) + 1; // the last page is a gap
        let base = area.base + (first << PAGE_BITS) + FRONT_GAP;
        area.pages.resize((first + pages) as usize, self.buffers.len() as u32 + 1);
        self.add(name, base, bytes, None);
        base
    }

    /// Returns the number of devices.
    pub fn devices(&self) -> usize {
        self.areas.len()
    }

    /// Sets the page-locked host memory that kernels of all devices may access, each range at its own address.
    pub fn map_host(&mut self, mapped: &[HostBytes]) {
        let buffers = &mut self.buffers;
        self.host_buffers.retain(|&index| {
            let stays = buffers[index].host.is_some_and(|host| mapped.contains(&host));
            if !stays {
                buffers[index].free();
            }
            stays
        });
        for &host in mapped {
            if !self.host_buffers.iter().any(|&index| self.buffers[index].host == Some(host)) {
                self.host_buffers.push(self.buffers.len());
                self.add("page-locked memory", host.address() as u64, host.len(), Some(host));
                if let Some(buffer) = self.buffers.last_mut() {
                    buffer.written.insert_range(0, host.len());
                }
            }
        }
    }

    /// Returns the index of the buffer whose pages contain an address.
    #[inline(always)]
    pub fn find(&self, address: u64) -> Option<usize> {
        for area in &self.areas {
            let page = address.wrapping_sub(area.base) >> PAGE_BITS;
            if let Some(&index) = area.pages.get(page as usize) {
                return (index as usize).checked_sub(1);
            }
        }
        self.find_host(address)
    }

    /// Returns the index of the buffer that mirrors the host memory at an address.
    #[cold]
    fn find_host(&self, address: u64) -> Option<usize> {
        let holds = |buffer: &Buffer| (buffer.base..buffer.base + buffer.data.len() as u64).contains(&address);
        self.host_buffers.iter().copied().find(|&index| holds(&self.buffers[index]))
    }

    /// Returns whether the current device may access a buffer without further steps: it has access, and the buffer does
    /// not mirror host memory.
    #[inline(always)]
    pub fn is_plain(&self, buffer: &Buffer) -> bool {
        self.reach >> buffer.device & 1 == 1 && buffer.host.is_none()
    }

    /// Returns whether a buffer belongs to another device than the current one.
    #[inline(always)]
    pub fn is_peers(&self, index: usize) -> bool {
        let buffer = &self.buffers[index];
        buffer.device != self.device && buffer.host.is_none()
    }

    /// Updates bytes of a buffer from the host memory that it mirrors, if any.
    pub fn fetch(&mut self, index: usize, offset: usize, bytes: usize) {
        let buffer = &mut self.buffers[index];
        if let Some(host) = buffer.host {
            host.part(offset, bytes).read_into(&mut buffer.data[offset..offset + bytes]);
        }
    }

    /// Writes bytes of a buffer to the host memory that it mirrors, if any.
    pub fn bring(&mut self, index: usize, offset: usize, bytes: usize) {
        let buffer = &self.buffers[index];
        if let Some(host) = buffer.host {
            host.part(offset, bytes).write(&buffer.data[offset..offset + bytes]);
        }
    }

    /// Returns an access's offset in the buffer of an index, if the access is inside it and needs no more checks.
    #[inline(always)]
    pub fn offset_in(&self, index: usize, address: u64, bytes: usize) -> Option<usize> {
        let buffer = self.buffers.get(index)?;
        let offset = address.wrapping_sub(buffer.base) as usize;
        let fits = offset < buffer.data.len() && bytes <= buffer.data.len() - offset;
        (fits && self.is_plain(buffer)).then_some(offset)
    }

    /// Checks one access. Returns the index of its buffer and the offset there.
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
        if buffer.host.is_none() && self.reach >> buffer.device & 1 == 0 {
            let (own, other, name) = (self.device, buffer.device, &buffer.name);
            return fault(format!(
                "{bytes} bytes in `{name}` of device {other}, which device {own} has no access to as a peer"
            ));
        }
        let offset = address - buffer.base;
        if offset.saturating_add(bytes as u64) > size {
            return fault(format!("{bytes} bytes at offset {offset} of `{}`, which has {size} bytes", buffer.name));
        }
        Ok((index, offset as usize))
    }

    /// Records that a launch touches a sector, and returns the buffer that contains it. `near` is a guess at the
    /// buffer.
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

    /// Records that a launch touches the sectors at ascending addresses in a buffer, and with `stores` also that it
    /// stores to them.
    ///
    /// Returns the number of sectors, or `None` if the addresses do not ascend.
    #[inline(always)]
    pub fn touch_ascending(&mut self, index: usize, at: impl Iterator<Item = u64>, stores: bool) -> Option<u64> {
        let buffer = &mut self.buffers[index];
        buffer.used = true;
        let (mut last, mut count) = (None, 0);
        for address in at {
            let sector = (address >> 5).wrapping_sub(buffer.base >> 5) as usize;
            if Some(sector) == last {
                continue;
            }
            if Some(sector) < last || !buffer.base.is_multiple_of(32) {
                return None;
            }
            buffer.touched.insert(sector);
            if stores {
                buffer.stored.insert(sector);
            }
            (last, count) = (Some(sector), count + 1);
        }
        Some(count)
    }

    /// Records that a launch stores bytes at an address of a buffer.
    #[inline(always)]
    pub fn note_stored(&mut self, index: usize, address: DeviceAddress, bytes: usize) {
        let buffer = &mut self.buffers[index];
        let first = address.saturating_sub(buffer.base) >> 5;
        let last = (address + bytes as u64 - 1).saturating_sub(buffer.base) >> 5;
        buffer.stored.insert_range(first as usize, (last - first + 1) as usize);
    }

    /// Records that a launch touches contiguous bytes of a buffer, and with `stores` also that it stores to them.
    ///
    /// Returns the number of sectors.
    #[inline(always)]
    pub fn touch_all(&mut self, index: usize, address: DeviceAddress, bytes: usize, stores: bool) -> u64 {
        let buffer = &mut self.buffers[index];
        let offset = (address - buffer.base) as usize;
        let first = offset / 32;
        let count = (offset + bytes - 1) / 32 - first + 1;
        buffer.used = true;
        buffer.touched.insert_range(first, count);
        if stores {
            buffer.stored.insert_range(first, count);
        }
        count as u64
    }

    /// Clears the access records of all buffers.
    pub fn clear_accesses(&mut self) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.live && buffer.used) {
            buffer.touched.clear();
            buffer.stored.clear();
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
    fn addresses_belong_to_at_most_one_buffer() {
        let mut memory = Memory::new(0);
        let (a, b) = (memory.allocate("a", 100), memory.allocate("b", 3 << 21));
        assert_eq!(memory.locate(a + 96, 4).unwrap(), (0, 96));
        assert_eq!(memory.locate(b + (3 << 21) - 8, 8).unwrap(), (1, (3 << 21) - 8));
        assert!(memory.locate(a + 97, 4).unwrap_err().message.contains("offset 97 of `a`, which has 100 bytes"));
        assert!(memory.locate(b - 4, 4).unwrap_err().message.contains("4 before the start of `b`"));
        assert_eq!(memory.locate(0, 4).unwrap_err().kind, FaultKind::OutOfBounds);
        assert_eq!(memory.locate(u64::MAX, 4).unwrap_err().kind, FaultKind::OutOfBounds);
    }
}
