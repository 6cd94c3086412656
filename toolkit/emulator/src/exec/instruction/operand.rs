//! Operands of memory instructions: addresses, and the registers that are loaded and stored.

use super::space::shared_offset;
use crate::exec::state::warp::Warp;
use crate::lanes::{Lanes, Registers};
use crate::program::{self, Address, Register};
use crate::vectors::widest;

widest! {
    /// Returns the addresses of all lanes.
    pub(crate) fn addresses(registers: &Registers, address: Address) -> Lanes<u64> {
        let mut found = Lanes([0; 32]);
        if address.wide {
            let slot = &registers.wides[address.slot as usize];
            for lane in 0..32 {
                found[lane] = slot[lane].wrapping_add_signed(address.offset);
            }
        } else {
            let slot = &registers.words[address.slot as usize];
            for lane in 0..32 {
                found[lane] = u64::from(slot[lane].wrapping_add(address.offset as u32));
            }
        }
        found
    }
}

/// Returns the addresses of all lanes as offsets in shared memory. A 64-bit address may be generic.
#[inline(always)]
pub(crate) fn shared_addresses(warp: &Warp, address: Address) -> Lanes<u64> {
    let found = addresses(&warp.registers, address);
    if address.wide { Lanes(found.map(shared_offset)) } else { found }
}

/// Converts one, two, four or eight bytes to a number.
#[inline(always)]
pub(crate) fn bits(bytes: &[u8]) -> u64 {
    match bytes.len() {
        4 => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        2 => u16::from_le_bytes([bytes[0], bytes[1]]).into(),
        8 => u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]),
        _ => bytes[0].into(),
    }
}

/// Sets one lane of a register.
#[inline(always)]
pub(crate) fn set_register(warp: &mut Warp, register: Register, lane: usize, value: u64) {
    match register.bits {
        64 => warp.registers.wides[register.slot as usize][lane] = value,
        32 => warp.registers.words[register.slot as usize][lane] = value as u32,
        16 => warp.registers.words[register.slot as usize][lane] = value as u32 & 0xffff,
        _ => {}
    }
}

/// Returns one lane of a register.
#[inline(always)]
pub(crate) fn get_register(warp: &Warp, register: Register, lane: usize) -> u64 {
    if register.bits == 64 {
        warp.registers.wides[register.slot as usize][lane]
    } else {
        warp.registers.words[register.slot as usize][lane].into()
    }
}

/// Writes one lane's bytes to its registers.
#[inline(always)]
pub(crate) fn scatter(warp: &mut Warp, access: &program::Access, lane: usize, bytes: &[u8]) {
    for (&register, part) in access.registers.iter().zip(bytes.chunks_exact(access.size.into())) {
        let mut value = bits(part);
        if access.signed {
            let spare = 64 - 8 * u32::from(access.size);
            value = ((value << spare) as i64 >> spare) as u64;
        }
        set_register(warp, register, lane, value);
    }
}

/// Reads one lane's bytes from its registers.
#[inline(always)]
pub(crate) fn gather(warp: &Warp, access: &program::Access, lane: usize, bytes: &mut [u8]) {
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

/// Writes the contiguous bytes of all 32 lanes to their registers.
#[inline(always)]
pub(crate) fn scatter_row(warp: &mut Warp, access: &program::Access, bytes: &[u8]) {
    match word_count(access) {
        count @ (1 | 2 | 4) => scatter_words(&mut warp.registers.words, &access.registers, count, bytes),
        _ => {
            for (lane, bytes) in bytes.chunks_exact(access.bytes()).enumerate() {
                scatter(warp, access, lane, bytes);
            }
        }
    }
}

/// Reads the contiguous bytes of all 32 lanes from their registers.
#[inline(always)]
pub(crate) fn gather_row(warp: &Warp, access: &program::Access, bytes: &mut [u8]) {
    match word_count(access) {
        count @ (1 | 2 | 4) => gather_words(&warp.registers.words, &access.registers, count, bytes),
        _ => {
            for (lane, bytes) in bytes.chunks_exact_mut(access.bytes()).enumerate() {
                gather(warp, access, lane, bytes);
            }
        }
    }
}

/// Returns the number of registers of an access if all are words, or else 0.
#[inline(always)]
fn word_count(access: &program::Access) -> usize {
    let are_words = access.size == 4 && access.registers.iter().all(|register| register.bits == 32);
    if are_words { access.registers.len() } else { 0 }
}

widest! {
    /// Writes one, two or four words per lane to registers.
    fn scatter_words(words: &mut [Lanes<u32>], registers: &[Register], count: usize, bytes: &[u8]) {
        match count {
            1 => scatter_chunks::<4>(words, registers, bytes),
            2 => scatter_chunks::<8>(words, registers, bytes),
            _ => scatter_chunks::<16>(words, registers, bytes),
        }
    }
}

widest! {
    /// Reads one, two or four words per lane from registers.
    fn gather_words(words: &[Lanes<u32>], registers: &[Register], count: usize, bytes: &mut [u8]) {
        match count {
            1 => gather_chunks::<4>(words, registers, bytes),
            2 => gather_chunks::<8>(words, registers, bytes),
            _ => gather_chunks::<16>(words, registers, bytes),
        }
    }
}

/// Writes words to registers. Each lane has `B` bytes.
#[inline(always)]
fn scatter_chunks<const B: usize>(words: &mut [Lanes<u32>], registers: &[Register], bytes: &[u8]) {
    let Some(bytes) = bytes.as_chunks::<B>().0.first_chunk::<32>() else { return };
    for (part, register) in registers.iter().enumerate().take(B / 4) {
        let mut found = Lanes([0; 32]);
        for lane in 0..32 {
            let bytes = &bytes[lane][4 * part..4 * part + 4];
            found[lane] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        words[register.slot as usize] = found;
    }
}

/// Reads words from registers. Each lane has `B` bytes.
#[inline(always)]
fn gather_chunks<const B: usize>(words: &[Lanes<u32>], registers: &[Register], bytes: &mut [u8]) {
    for (part, register) in registers.iter().enumerate().take(B / 4) {
        let words = &words[register.slot as usize];
        for (word, bytes) in words.iter().zip(bytes.as_chunks_mut::<B>().0) {
            bytes[4 * part..4 * part + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}
