//! Loads, stores and atomics of a warp.

use super::machine::Machine;
use super::shared;
use super::traffic;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::DevicePtr;
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, flush};
use crate::program::{self, Address, Atomic, AtomicOp, Register};
use crate::ptx::ast::Space;
use crate::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BITS};
use half::{bf16, f16};

/// The lanes of a mask.
#[inline(always)]
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

/// The addresses of all lanes.
#[inline(always)]
pub(super) fn addresses(warp: &Warp, address: Address) -> [u64; 32] {
    let mut found = [0; 32];
    if address.wide {
        let slot = &warp.registers.wides[address.slot as usize];
        for lane in 0..32 {
            found[lane] = slot[lane].wrapping_add_signed(address.offset);
        }
    } else {
        let slot = &warp.registers.words[address.slot as usize];
        for lane in 0..32 {
            found[lane] = u64::from(slot[lane].wrapping_add(address.offset as u32));
        }
    }
    found
}

/// The space of a generic address, and what to take off it.
#[inline(always)]
fn space_of(address: u64) -> (Space, u64) {
    match address >> WINDOW_BITS {
        window if window == SHARED_WINDOW >> WINDOW_BITS => (Space::Shared, SHARED_WINDOW),
        window if window == LOCAL_WINDOW >> WINDOW_BITS => (Space::Local, LOCAL_WINDOW),
        _ => (Space::Global, 0),
    }
}

/// Whether all 32 lanes access one stretch of memory, in order.
#[inline(always)]
fn in_a_row(mask: u32, at: &[u64; 32], bytes: usize) -> bool {
    let mut gaps = 0;
    for lane in 0..32 {
        gaps |= at[lane] ^ at[0].wrapping_add((lane * bytes) as u64);
    }
    mask == u32::MAX && gaps == 0
}

/// Up to eight little-endian bytes.
#[inline(always)]
fn bits(bytes: &[u8]) -> u64 {
    match bytes.len() {
        4 => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        2 => u16::from_le_bytes([bytes[0], bytes[1]]).into(),
        8 => u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]),
        _ => bytes[0].into(),
    }
}

#[inline(always)]
fn set_register(warp: &mut Warp, register: Register, lane: usize, value: u64) {
    match register.bits {
        64 => warp.registers.wides[register.slot as usize][lane] = value,
        32 => warp.registers.words[register.slot as usize][lane] = value as u32,
        16 => warp.registers.words[register.slot as usize][lane] = value as u32 & 0xffff,
        _ => {}
    }
}

#[inline(always)]
fn get_register(warp: &Warp, register: Register, lane: usize) -> u64 {
    if register.bits == 64 {
        warp.registers.wides[register.slot as usize][lane]
    } else {
        warp.registers.words[register.slot as usize][lane].into()
    }
}

/// Puts one lane's bytes into its registers.
#[inline(always)]
fn scatter(warp: &mut Warp, access: &program::Access, lane: usize, bytes: &[u8]) {
    for (&register, part) in access.registers.iter().zip(bytes.chunks_exact(access.size.into())) {
        let mut value = bits(part);
        if access.signed {
            let spare = 64 - 8 * u32::from(access.size);
            value = ((value << spare) as i64 >> spare) as u64;
        }
        set_register(warp, register, lane, value);
    }
}

/// Takes one lane's bytes from its registers.
#[inline(always)]
fn gather(warp: &Warp, access: &program::Access, lane: usize, bytes: &mut [u8]) {
    for (&register, part) in access.registers.iter().zip(bytes.chunks_exact_mut(access.size.into())) {
        let value = get_register(warp, register, lane);
        match part.len() {
            4 => part.copy_from_slice(&(value as u32).to_le_bytes()),
            2 => part.copy_from_slice(&(value as u16).to_le_bytes()),
            8 => part.copy_from_slice(&value.to_le_bytes()),
            _ => part[0] = value as u8,
        }
    }
}

impl Machine<'_> {
    /// Calls `action` for each group of lanes whose addresses lie in one space.
    #[inline(always)]
    fn by_space(
        &mut self,
        warp: &mut Warp,
        space: Space,
        mask: u32,
        addresses: &mut [u64; 32],
        mut action: impl FnMut(&mut Self, &mut Warp, Space, u32, &[u64; 32]) -> Checked<()>,
    ) -> Checked<()> {
        if space != Space::Generic {
            return action(self, warp, space, mask, addresses);
        }
        let mut rest = mask;
        while rest != 0 {
            let (space, base) = space_of(addresses[rest.trailing_zeros() as usize]);
            let mut group = 0;
            for lane in lanes(rest) {
                if space_of(addresses[lane]).0 == space {
                    group |= 1 << lane;
                }
            }
            rest &= !group;
            if base != 0 {
                lanes(group).for_each(|lane| addresses[lane] -= base);
            }
            action(self, warp, space, group, addresses)?;
        }
        Ok(())
    }

    pub(super) fn load(&mut self, warp: &mut Warp, access: &program::Access, mask: u32) -> Checked<()> {
        let mut at = addresses(warp, access.address);
        self.by_space(warp, access.space, mask, &mut at, |machine, warp, space, mask, at| match space {
            Space::Shared => machine.load_shared(warp, access, mask, at),
            Space::Local | Space::Param => machine.load_private(warp, access, mask, at),
            _ => machine.load_global(warp, access, mask, at),
        })
    }

    pub(super) fn store(&mut self, warp: &mut Warp, access: &program::Access, mask: u32) -> Checked<()> {
        let mut at = addresses(warp, access.address);
        self.by_space(warp, access.space, mask, &mut at, |machine, warp, space, mask, at| match space {
            Space::Shared => machine.store_shared(warp, access, mask, at),
            Space::Local | Space::Param => machine.store_private(warp, access, mask, at),
            _ => machine.store_global(warp, access, mask, at),
        })
    }

    /// The buffer that holds all of a request, when one does and all addresses are aligned: its index.
    #[inline(always)]
    fn common_buffer(&self, mask: u32, at: &[u64; 32], bytes: usize) -> Option<usize> {
        let (mut low, mut high, mut any) = (u64::MAX, 0, 0);
        for lane in 0..32 {
            let active = mask >> lane & 1 == 1;
            low = low.min(if active { at[lane] } else { u64::MAX });
            high = high.max(if active { at[lane] } else { 0 });
            any |= if active { at[lane] } else { 0 };
        }
        let index = self.memory.find(low)?;
        let buffer = &self.memory.buffers[index];
        let end = buffer.base + buffer.data.len() as u64;
        let fits = low >= buffer.base && high <= end.wrapping_sub(bytes as u64) && bytes as u64 <= end - buffer.base;
        (fits && any & (bytes as u64 - 1) == 0 && buffer.live).then_some(index)
    }

    /// Buffer and offset of one lane's access, checked.
    fn global(&self, address: DevicePtr, bytes: usize, lane: usize, read: bool) -> Checked<(usize, usize)> {
        let (index, offset) = self.memory.locate(address, bytes).map_err(|fault| fault.lane(lane))?;
        let buffer = &self.memory.buffers[index];
        let fault =
            |kind, message: String| Err(Violation::new(kind, message).lane(lane).address(address).buffer(&buffer.name));
        if !address.is_multiple_of(bytes as u64) {
            let message =
                format!("{bytes} bytes at {address:#x}, offset {offset} of `{}`: no multiple of {bytes}", buffer.name);
            return fault(FaultKind::Misaligned, message);
        }
        if read && self.options.check_initialised && !buffer.written.contains_range(offset, bytes) {
            let message = format!("{bytes} bytes at offset {offset} of `{}` that nothing wrote", buffer.name);
            return fault(FaultKind::Uninitialised, message);
        }
        Ok((index, offset))
    }

    fn load_global(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        self.count_global(mask, at, bytes);
        if let Some(index) = self.common_buffer(mask, at, bytes) {
            let buffer = &self.memory.buffers[index];
            let offset = |lane: usize| (at[lane] - buffer.base) as usize;
            let check = self.options.check_initialised;
            let bad = check
                && if in_a_row(mask, at, bytes) {
                    !buffer.written.contains_range(offset(0), 32 * bytes)
                } else {
                    lanes(mask).any(|lane| !buffer.written.contains_small(offset(lane), bytes))
                };
            if !bad {
                if access.size == 4 && mask == u32::MAX {
                    for (part, register) in access.registers.iter().enumerate().filter(|(_, r)| r.bits == 32) {
                        let target = &mut warp.registers.words[register.slot as usize];
                        for lane in 0..32 {
                            let at = offset(lane) + 4 * part;
                            let data = &buffer.data[at..at + 4];
                            target[lane] = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                        }
                    }
                    if access.registers.iter().all(|register| matches!(register.bits, 0 | 32)) {
                        return Ok(());
                    }
                }
                for lane in lanes(mask) {
                    let at = offset(lane);
                    scatter(warp, access, lane, &buffer.data[at..at + bytes]);
                }
                return Ok(());
            }
        }
        for lane in lanes(mask) {
            let (index, offset) = self.global(at[lane], bytes, lane, true)?;
            scatter(warp, access, lane, &self.memory.buffers[index].data[offset..offset + bytes]);
        }
        Ok(())
    }

    fn store_global(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        self.count_global(mask, at, bytes);
        let common = self.common_buffer(mask, at, bytes);
        if let Some(index) = common
            && in_a_row(mask, at, bytes)
        {
            let buffer = &mut self.memory.buffers[index];
            let start = (at[0] - buffer.base) as usize;
            buffer.written.insert_range(start, 32 * bytes);
            for (lane, data) in buffer.data[start..start + 32 * bytes].chunks_exact_mut(bytes).enumerate() {
                gather(warp, access, lane, data);
            }
            return Ok(());
        }
        for lane in lanes(mask) {
            let (index, offset) = match common {
                Some(index) => (index, (at[lane] - self.memory.buffers[index].base) as usize),
                None => self.global(at[lane], bytes, lane, false)?,
            };
            let buffer = &mut self.memory.buffers[index];
            buffer.written.insert_small(offset, bytes);
            gather(warp, access, lane, &mut buffer.data[offset..offset + bytes]);
        }
        Ok(())
    }

    /// Counts the sectors of a request, and notes them as touched.
    #[inline(always)]
    pub(super) fn count_global(&mut self, mask: u32, at: &[u64; 32], bytes: usize) {
        let sectors = traffic::sectors(mask, at, bytes);
        let counts = &mut self.stats[self.pc];
        let asked = u64::from(mask.count_ones()) * bytes as u64;
        counts.global_bytes += asked;
        counts.sectors += sectors.len as u64;
        counts.ideal_sectors += asked.div_ceil(32).min(sectors.len as u64);
        let mut last: Option<usize> = None;
        for &sector in &sectors.list[..sectors.len] {
            let address = sector << 5;
            let same = |index: usize| {
                let buffer = &self.memory.buffers[index];
                address + 32 > buffer.base && address < buffer.base + buffer.data.len() as u64
            };
            let found =
                last.filter(|&index| same(index)).or_else(|| self.memory.find(address).filter(|&index| same(index)));
            if let Some(index) = found {
                let buffer = &mut self.memory.buffers[index];
                buffer.touched.insert((address.saturating_sub(buffer.base) >> 5) as usize);
            }
            last = found;
        }
    }

    #[inline(always)]
    pub(super) fn who<'w>(warp: &'w Warp, lane: usize, strong: bool) -> shared::Access<'w> {
        shared::Access { warp: warp.id, lane, epoch: warp.clock.epoch, view: warp.clock.view(lane), strong }
    }

    fn load_shared(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        self.count_shared(mask, at, bytes);
        for lane in lanes(mask) {
            let offset = self.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
            let who = Self::who(warp, lane, access.strong);
            self.shared.read(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
            scatter(warp, access, lane, &self.shared.data[offset..offset + bytes]);
        }
        Ok(())
    }

    fn store_shared(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        self.count_shared(mask, at, bytes);
        let mut data = [0; 32];
        for lane in lanes(mask) {
            let offset = self.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
            gather(warp, access, lane, &mut data[..bytes]);
            let same = self.shared.data[offset..offset + bytes] == data[..bytes];
            let who = Self::who(warp, lane, access.strong);
            self.shared.write(offset, bytes, who, same).map_err(|fault| fault.lane(lane))?;
            self.shared.data[offset..offset + bytes].copy_from_slice(&data[..bytes]);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn count_shared(&mut self, mask: u32, at: &[u64; 32], bytes: usize) {
        let (wavefronts, ideal) = traffic::wavefronts(mask, at, bytes);
        let counts = &mut self.stats[self.pc];
        counts.wavefronts += wavefronts;
        counts.ideal_wavefronts += ideal;
    }

    fn private(&self, address: u64, bytes: usize, lane: usize) -> Checked<usize> {
        let size = self.entry.private;
        let fault = |kind, message: String| {
            Err(Violation::new(kind, message).lane(lane).address(address).buffer("local memory"))
        };
        if address.saturating_add(bytes as u64) > size as u64 {
            let message = format!("{bytes} bytes at offset {address:#x} of local memory, which has {size} bytes");
            return fault(FaultKind::OutOfBounds, message);
        }
        if !address.is_multiple_of(bytes as u64) {
            let message = format!("{bytes} bytes at offset {address:#x} of local memory: no multiple of {bytes}");
            return fault(FaultKind::Misaligned, message);
        }
        Ok(lane * size + address as usize)
    }

    fn load_private(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        for lane in lanes(mask) {
            let offset = self.private(at[lane], bytes, lane)?;
            let mut data = [0; 32];
            data[..bytes].copy_from_slice(&warp.private[offset..offset + bytes]);
            scatter(warp, access, lane, &data[..bytes]);
        }
        Ok(())
    }

    fn store_private(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        for lane in lanes(mask) {
            let offset = self.private(at[lane], bytes, lane)?;
            let mut data = [0; 32];
            gather(warp, access, lane, &mut data[..bytes]);
            warp.private[offset..offset + bytes].copy_from_slice(&data[..bytes]);
        }
        Ok(())
    }

    /// A load from the kernel's parameters: the same for all lanes.
    pub(super) fn load_parameter(&self, warp: &mut Warp, access: &program::Access, offset: usize, mask: u32) {
        let bytes = &self.parameters[offset..offset + access.bytes()];
        lanes(mask).for_each(|lane| scatter(warp, access, lane, bytes));
    }

    pub(super) fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, mask: u32) -> Checked<()> {
        let mut at = addresses(warp, atomic.address);
        let bytes = usize::from(atomic.size);
        self.by_space(warp, atomic.space, mask, &mut at, |machine, warp, space, mask, at| {
            match space {
                Space::Shared => machine.count_shared(mask, at, bytes),
                Space::Local | Space::Param => {
                    return Err(Violation::new(FaultKind::Unsupported, "an atomic on local memory"));
                }
                _ => machine.count_global(mask, at, bytes),
            }
            for lane in lanes(mask) {
                machine.atomic_lane(warp, atomic, space, lane, at[lane])?;
            }
            Ok(())
        })
    }

    fn atomic_lane(&mut self, warp: &mut Warp, atomic: &Atomic, space: Space, lane: usize, at: u64) -> Checked<()> {
        let bytes = usize::from(atomic.size);
        let register = |slot: u32| Register { slot, bits: atomic.size * 8 };
        let value = get_register(warp, register(atomic.value), lane);
        let second = get_register(warp, register(atomic.second), lane);
        let data = if space == Space::Shared {
            let offset = self.shared.locate(at, bytes).map_err(|fault| fault.lane(lane))?;
            let who = Self::who(warp, lane, true);
            self.shared.read(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
            self.shared.write(offset, bytes, who, false).map_err(|fault| fault.lane(lane))?;
            &mut self.shared.data[offset..offset + bytes]
        } else {
            let (index, offset) = self.global(at, bytes, lane, true)?;
            &mut self.memory.buffers[index].data[offset..offset + bytes]
        };
        let old = bits(data);
        let new = match atomic.op {
            AtomicOp::AddF32 if space != Space::Shared => add_flushing(old as u32, value as u32).into(),
            op => apply(op, atomic.size, old, value, second),
        };
        data.copy_from_slice(&new.to_le_bytes()[..bytes]);
        if let Some(result) = atomic.result {
            set_register(warp, register(result), lane, old);
        }
        Ok(())
    }
}

/// An addition in global memory, where subnormals count as zero; in shared memory they do not.
fn add_flushing(a: u32, b: u32) -> u32 {
    flush(flush(f32::from_bits(a)) + flush(f32::from_bits(b))).to_bits()
}

/// What an atomic leaves in memory.
fn apply(op: AtomicOp, size: u8, old: u64, value: u64, second: u64) -> u64 {
    let signed = |v: u64| if size == 8 { v as i64 } else { (v as i32).into() };
    let halves = |add: fn(u16, u16) -> u16| {
        let low = add(old as u16, value as u16);
        let high = add((old >> 16) as u16, (value >> 16) as u16);
        u64::from(high) << 16 | u64::from(low)
    };
    match op {
        AtomicOp::Add => old.wrapping_add(value),
        AtomicOp::AddF32 => (f32::from_bits(old as u32) + f32::from_bits(value as u32)).to_bits().into(),
        AtomicOp::AddF64 => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        AtomicOp::AddF16x2 => {
            halves(|a, b| f32_to_f16(f16_to_f32(f16::from_bits(a)) + f16_to_f32(f16::from_bits(b))).to_bits())
        }
        AtomicOp::AddBf16x2 => {
            halves(|a, b| f32_to_bf16(bf16_to_f32(bf16::from_bits(a)) + bf16_to_f32(bf16::from_bits(b))).to_bits())
        }
        AtomicOp::Exchange => value,
        AtomicOp::CompareSwap => {
            if old == value {
                second
            } else {
                old
            }
        }
        AtomicOp::And => old & value,
        AtomicOp::Or => old | value,
        AtomicOp::Xor => old ^ value,
        AtomicOp::Min => old.min(value),
        AtomicOp::Max => old.max(value),
        AtomicOp::MinSigned => {
            if signed(old) <= signed(value) {
                old
            } else {
                value
            }
        }
        AtomicOp::MaxSigned => {
            if signed(old) >= signed(value) {
                old
            } else {
                value
            }
        }
        AtomicOp::Increment => {
            if old >= value {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > value {
                value
            } else {
                old - 1
            }
        }
    }
}
