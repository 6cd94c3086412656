//! `wmma`: loads, stores and products of fragments.

use super::access::{load, store};
use super::operand::addresses;
use super::other_matrix::{MAX_DEPTH, add_integers, multiply_floats};
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Registers;
use crate::number::{f16_to_f32, f32_to_f16};
use crate::program::{Access, Address, FactorKind, Fragment, FragmentAccess, FragmentProduct, Register};
use crate::ptx::ast::Width;
use half::f16;

/// Returns the access to one element, or to all elements of a register, at the addresses in the scratch slot.
fn part(access: &FragmentAccess, bytes: usize, slot: u32) -> Access {
    Access {
        space: access.space,
        address: Address { slot: access.scratch.0, wide: true, offset: 0 },
        size: bytes as u8,
        signed: false,
        order: None,
        registers: Box::new([Register { slot, bits: 32 }]),
    }
}

/// Writes the addresses of one element of each lane's register to the scratch slot.
fn set_addresses(warp: &mut Warp, access: &FragmentAccess, base: &[u64; 32], register: usize, element: usize) {
    let strides = warp.registers.words[access.stride as usize];
    warp.registers.wides[access.scratch.0 as usize].0 = std::array::from_fn(|lane| {
        let (side, along) = access.fragment.place(register, lane);
        let (side, along, stride) = (side as u64, (along + element) as u64, u64::from(strides[lane]));
        let index = if access.along_depth { side * stride + along } else { along * stride + side };
        base[lane].wrapping_add(index * access.fragment.bits as u64 / 8)
    });
}

fn check_whole(warp: &Warp) -> Checked<()> {
    if warp.live == u32::MAX {
        return Ok(());
    }
    Err(Violation::new(FaultKind::MissingLanes, "an access to a fragment needs all 32 lanes"))
}

/// Loads a fragment.
pub(crate) fn load_fragment(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &FragmentAccess,
    mask: u32,
) -> Checked<()> {
    check_whole(warp)?;
    let base = addresses(&warp.registers, access.address);
    let Fragment { bits, .. } = access.fragment;
    let real = access.fragment.registers();
    for (register, &slot) in access.registers[..real].iter().enumerate() {
        if access.along_depth {
            set_addresses(warp, access, &base, register, 0);
            load(env, warp, &part(access, 4, slot), mask)?;
            continue;
        }
        let mut words = [0; 32];
        for element in 0..access.fragment.per_register() {
            set_addresses(warp, access, &base, register, element);
            load(env, warp, &part(access, bits / 8, access.scratch.1), mask)?;
            let loaded = &warp.registers.words[access.scratch.1 as usize];
            words.iter_mut().zip(&loaded.0).for_each(|(word, value)| *word |= value << (element * bits));
            if let Some(poison) = &mut warp.poison {
                let part = poison.get((Width::B32, access.scratch.1));
                poison.set((Width::B32, slot), part, part);
            }
        }
        warp.registers.words[slot as usize].0 = words;
    }
    for (register, &slot) in access.registers.iter().enumerate().skip(real) {
        let original = access.registers[register % real];
        warp.registers.words[slot as usize] = warp.registers.words[original as usize];
        if let Some(poison) = &mut warp.poison {
            poison.set((Width::B32, slot), u32::MAX, poison.get((Width::B32, original)));
        }
    }
    Ok(())
}

/// Stores a fragment.
pub(crate) fn store_fragment(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &FragmentAccess,
    mask: u32,
) -> Checked<()> {
    check_whole(warp)?;
    let base = addresses(&warp.registers, access.address);
    let Fragment { bits, .. } = access.fragment;
    for (register, &slot) in access.registers.iter().enumerate() {
        if access.along_depth {
            set_addresses(warp, access, &base, register, 0);
            store(env, warp, &part(access, 4, slot), mask)?;
            continue;
        }
        for element in 0..access.fragment.per_register() {
            set_addresses(warp, access, &base, register, element);
            warp.registers.words[access.scratch.1 as usize].0 =
                warp.registers.words[slot as usize].map(|word| word >> (element * bits));
            if let Some(poison) = &mut warp.poison {
                poison.set((Width::B32, access.scratch.1), u32::MAX, poison.get((Width::B32, slot)));
            }
            store(env, warp, &part(access, bits / 8, access.scratch.1), mask)?;
        }
    }
    Ok(())
}

/// Returns the bits of a fragment's elements, by side and depth.
fn elements(registers: &Registers, slots: &[u32], fragment: Fragment) -> Vec<Vec<u32>> {
    let mut found = vec![vec![0; fragment.depth]; fragment.sides];
    for (register, &slot) in slots[..fragment.registers()].iter().enumerate() {
        for (lane, &word) in registers.words[slot as usize].iter().enumerate() {
            let (side, along) = fragment.place(register, lane);
            for element in 0..fragment.per_register() {
                let bits = word >> (element * fragment.bits) & u32::MAX >> (32 - fragment.bits);
                found[side][along + element] = bits;
            }
        }
    }
    found
}

/// Executes `wmma.mma`.
pub(crate) fn multiply_fragments(registers: &mut Registers, product: &FragmentProduct) {
    let [m, n, depth] = product.shape;
    let bits = product.kind.bits();
    let a = elements(registers, &product.a, Fragment { sides: m, depth, bits });
    let b = elements(registers, &product.b, Fragment { sides: n, depth, bits });
    let sum_of = |half: bool| Fragment { sides: m, depth: n, bits: if half { 16 } else { 32 } };
    let [d_half, c_half] = product.half_sums;
    let mut sums = elements(registers, &product.c, sum_of(c_half));
    if let FactorKind::Integer { signed, saturates } = product.kind {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let pairs = a[row].iter().copied().zip(b[column].iter().copied());
                *sum = add_integers(*sum, pairs, signed, saturates);
            }
        }
    } else {
        let widen = |bits: u32| if c_half { f16_to_f32(f16::from_bits(bits as u16)) } else { f32::from_bits(bits) };
        let narrow = |sum: f32| if d_half { f32_to_f16(sum).to_bits().into() } else { sum.to_bits() };
        for (top, left) in (0..m).step_by(16).flat_map(|top| (0..n).step_by(8).map(move |left| (top, left))) {
            let rows = (m - top).min(16);
            let (mut tile_a, mut tile_b) = ([[0; 16]; MAX_DEPTH], [[0; 8]; MAX_DEPTH]);
            for k in 0..depth {
                (0..rows).for_each(|row| tile_a[k][row] = a[top + row][k]);
                (0..8).for_each(|column| tile_b[k][column] = b[left + column][k]);
            }
            let mut tile = [[0f32; 8]; 16];
            (0..rows).for_each(|row| tile[row] = std::array::from_fn(|column| widen(sums[top + row][left + column])));
            multiply_floats(product.kind, depth, &tile_a, &tile_b, &mut tile);
            (0..rows)
                .for_each(|row| (0..8).for_each(|column| sums[top + row][left + column] = narrow(tile[row][column])));
        }
    }
    let fragment = sum_of(d_half);
    for (register, &slot) in product.d.iter().enumerate() {
        registers.words[slot as usize].0 = std::array::from_fn(|lane| {
            let (side, along) = fragment.place(register, lane);
            let elements = sums[side][along..along + fragment.per_register()].iter().enumerate();
            elements.fold(0, |word, (element, bits)| word | bits << (element * fragment.bits))
        });
    }
}
