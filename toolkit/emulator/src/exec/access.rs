//! Loads and stores of a warp, by memory space.

use super::machine::Machine;
use super::shadow;
use super::traffic;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{self, Address, Register};
use crate::ptx::ast::Space;
use crate::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BITS};

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

/// The offset in shared memory of a generic or a shared address.
pub(super) fn shared_offset(address: u64) -> u64 {
    if address >> WINDOW_BITS == SHARED_WINDOW >> WINDOW_BITS { address - SHARED_WINDOW } else { address }
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

/// Up to eight little-endian bytes.
#[inline(always)]
pub(super) fn bits(bytes: &[u8]) -> u64 {
    match bytes.len() {
        4 => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        2 => u16::from_le_bytes([bytes[0], bytes[1]]).into(),
        8 => u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]),
        _ => bytes[0].into(),
    }
}

#[inline(always)]
pub(super) fn set_register(warp: &mut Warp, register: Register, lane: usize, value: u64) {
    match register.bits {
        64 => warp.registers.wides[register.slot as usize][lane] = value,
        32 => warp.registers.words[register.slot as usize][lane] = value as u32,
        16 => warp.registers.words[register.slot as usize][lane] = value as u32 & 0xffff,
        _ => {}
    }
}

#[inline(always)]
pub(super) fn get_register(warp: &Warp, register: Register, lane: usize) -> u64 {
    if register.bits == 64 {
        warp.registers.wides[register.slot as usize][lane]
    } else {
        warp.registers.words[register.slot as usize][lane].into()
    }
}

/// Puts one lane's bytes into its registers.
#[inline(always)]
pub(super) fn scatter(warp: &mut Warp, access: &program::Access, lane: usize, bytes: &[u8]) {
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
pub(super) fn gather(warp: &Warp, access: &program::Access, lane: usize, bytes: &mut [u8]) {
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
    pub(super) fn by_space(
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
        self.by_space(warp, access.space, mask, &mut at, |machine, warp, space, mask, at| {
            match space {
                Space::Shared => machine.load_shared(warp, access, mask, at)?,
                Space::Local | Space::Param => machine.load_private(warp, access, mask, at)?,
                _ => machine.load_global(warp, access, mask, at)?,
            }
            if let Some(order) = access.order {
                lanes(mask).for_each(|lane| machine.meet_others(warp, lane, (space, at[lane]), order, (true, false)));
            }
            Ok(())
        })
    }

    pub(super) fn store(&mut self, warp: &mut Warp, access: &program::Access, mask: u32) -> Checked<()> {
        let mut at = addresses(warp, access.address);
        self.by_space(warp, access.space, mask, &mut at, |machine, warp, space, mask, at| {
            match space {
                Space::Shared => machine.store_shared(warp, access, mask, at)?,
                Space::Local | Space::Param => machine.store_private(warp, access, mask, at)?,
                _ => machine.store_global(warp, access, mask, at)?,
            }
            if let Some(order) = access.order {
                lanes(mask).for_each(|lane| machine.meet_others(warp, lane, (space, at[lane]), order, (false, true)));
            }
            Ok(())
        })
    }

    #[inline(always)]
    pub(super) fn who<'w>(warp: &'w Warp, lane: usize, strong: bool) -> shadow::Access<'w> {
        shadow::Access { warp: warp.id, lane, epoch: warp.clock.epoch, view: warp.clock.view(lane), strong }
    }

    fn load_shared(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        self.count_shared(mask, at, bytes);
        for lane in lanes(mask) {
            let offset = self.block.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
            let who = Self::who(warp, lane, access.order.is_some());
            self.block.shared.read(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
            scatter(warp, access, lane, &self.block.shared.data[offset..offset + bytes]);
        }
        Ok(())
    }

    fn store_shared(&mut self, warp: &mut Warp, access: &program::Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
        let bytes = access.bytes();
        self.count_shared(mask, at, bytes);
        let mut data = [0; 32];
        for lane in lanes(mask) {
            let offset = self.block.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
            gather(warp, access, lane, &mut data[..bytes]);
            let same = self.block.shared.data[offset..offset + bytes] == data[..bytes];
            let who = Self::who(warp, lane, access.order.is_some());
            self.block.shared.write(offset, bytes, who, same).map_err(|fault| fault.lane(lane))?;
            self.block.shared.data[offset..offset + bytes].copy_from_slice(&data[..bytes]);
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
        let size = self.kernel.private;
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
}
