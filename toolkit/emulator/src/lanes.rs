//! Registers of a warp, and operations that work on all 32 lanes at once.
//!
//! A register is an array of 32 values. Each operation on lanes is compiled for AVX-512, for AVX2, and for a single lane.
//! x86-64 processors without vectors call the last version for lane after lane. The decoder picks one version when it
//! resolves an instruction.
//!
//! Rare operations are many and have only the version for a single lane. For other processors the compiler vectorises
//! the 32 lanes as well as it can.

use half::{bf16, f16};
use std::ops::{Deref, DerefMut};

/// The values of a warp's 32 lanes in one register. It is aligned to a cache line, so that no vector crosses two lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Lanes<T>(pub [T; 32]);

impl<T> Deref for Lanes<T> {
    type Target = [T; 32];
    #[inline(always)]
    fn deref(&self) -> &[T; 32] {
        &self.0
    }
}

impl<T> DerefMut for Lanes<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T; 32] {
        &mut self.0
    }
}

/// The registers of one warp, by width. Predicates are masks of lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    /// 16-bit and 32-bit registers. 16-bit registers keep their upper half zero.
    pub words: Vec<Lanes<u32>>,
    /// 64-bit registers.
    pub wides: Vec<Lanes<u64>>,
    /// Predicates.
    pub masks: Vec<u32>,
}

/// The operands of an operation, as indices into the register file of each operand's width.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slots {
    pub d: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
}

/// The register file that an operation writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    Words,
    Wides,
    Masks,
}

/// An operation on all 32 lanes, which takes the registers and the operands' slots.
///
/// The function may need AVX2 or AVX-512, so calling it is unsafe. [`LaneOp::run`] is the only caller.
#[derive(Clone, Copy)]
pub(crate) struct LaneOp {
    operation: unsafe fn(&mut Registers, Slots),
    file: File,
}

impl LaneOp {
    /// Creates an operation that writes to a register file.
    ///
    /// # Safety
    /// `operation` must need no CPU feature that this machine lacks.
    pub const unsafe fn new(operation: unsafe fn(&mut Registers, Slots), file: File) -> Self {
        Self { operation, file }
    }

    /// Runs the operation for the lanes of a mask.
    #[inline(always)]
    pub fn run(self, registers: &mut Registers, slots: Slots, mask: u32) {
        if mask == u32::MAX { self.run_all(registers, slots) } else { self.run_some(registers, slots, mask) }
    }

    #[inline(always)]
    fn run_all(self, registers: &mut Registers, slots: Slots) {
        // SAFETY: the function needs only CPU features that this machine has, as the caller of `new` promised.
        unsafe { (self.operation)(registers, slots) }
    }

    /// Computes all lanes, and then restores those outside the mask.
    #[inline(never)]
    fn run_some(self, registers: &mut Registers, slots: Slots, mask: u32) {
        let target = slots.d as usize;
        match self.file {
            _ if mask == 0 => {}
            File::Words => {
                let old = registers.words[target];
                self.run_all(registers, slots);
                put_back(&mut registers.words[target], &old, mask, u32::MAX);
            }
            File::Wides => {
                let old = registers.wides[target];
                self.run_all(registers, slots);
                put_back(&mut registers.wides[target], &old, mask, u64::MAX);
            }
            File::Masks => {
                let old = registers.masks[target];
                self.run_all(registers, slots);
                let new = &mut registers.masks[target];
                *new = *new & mask | old & !mask;
            }
        }
    }
}

/// The bit of each lane in a mask.
const BITS: [u32; 32] = {
    let mut bits = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

/// Restores lanes outside a mask to their old values. It reads all values and has no branches, which lets it vectorise.
#[inline(always)]
fn put_back<T>(target: &mut Lanes<T>, old: &Lanes<T>, mask: u32, all: T)
where
    T: Copy + Default + std::ops::BitAnd<Output = T> + std::ops::BitOr<Output = T> + std::ops::Not<Output = T>,
{
    for lane in 0..32 {
        let kept = if mask & BITS[lane] == 0 { all } else { T::default() };
        target[lane] = old[lane] & kept | target[lane] & !kept;
    }
}

/// A type that operations read from and write to registers.
pub(crate) trait Lane: Copy {
    /// The register file that holds it.
    const FILE: File;
    type View<'a>: Copy;
    type Buffer;
    fn view(registers: &Registers, slot: u32) -> Self::View<'_>;
    fn get(view: Self::View<'_>, lane: usize) -> Self;
    fn buffer() -> Self::Buffer;
    fn set(self, buffer: &mut Self::Buffer, lane: usize);
    fn commit(registers: &mut Registers, slot: u32, buffer: Self::Buffer);
    /// Reads the value from a register of any width.
    fn from_bits(bits: u64) -> Self;
    fn into_bits(self) -> u64;
}

macro_rules! lane {
    ($type:ty, $file:ident, $kind:ident, $raw:ty, |$from:ident| $get:expr, |$value:ident| $put:expr) => {
        impl Lane for $type {
            const FILE: File = File::$kind;
            type View<'a> = &'a [$raw; 32];
            type Buffer = Lanes<$raw>;
            #[inline(always)]
            fn view(registers: &Registers, slot: u32) -> Self::View<'_> {
                &registers.$file[slot as usize]
            }
            #[inline(always)]
            fn get(view: Self::View<'_>, lane: usize) -> Self {
                let $from = view[lane];
                $get
            }
            #[inline(always)]
            fn buffer() -> Self::Buffer {
                Lanes([0; 32])
            }
            #[inline(always)]
            fn set(self, buffer: &mut Self::Buffer, lane: usize) {
                let $value = self;
                buffer[lane] = $put;
            }
            #[inline(always)]
            fn commit(registers: &mut Registers, slot: u32, buffer: Self::Buffer) {
                registers.$file[slot as usize] = buffer;
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                let $from = bits as $raw;
                $get
            }
            #[inline(always)]
            fn into_bits(self) -> u64 {
                let $value = self;
                let bits: $raw = $put;
                bits.into()
            }
        }
    };
}
lane!(u8, words, Words, u32, |v| v as u8, |v| v.into());
lane!(i8, words, Words, u32, |v| v as i8, |v| (v as i16 as u16).into());
lane!(u16, words, Words, u32, |v| v as u16, |v| v.into());
lane!(i16, words, Words, u32, |v| v as i16, |v| (v as u16).into());
lane!(f16, words, Words, u32, |v| f16::from_bits(v as u16), |v| v.to_bits().into());
lane!(bf16, words, Words, u32, |v| bf16::from_bits(v as u16), |v| v.to_bits().into());
lane!([f16; 2], words, Words, u32, |v| [f16::from_bits(v as u16), f16::from_bits((v >> 16) as u16)], |v| {
    u32::from(v[0].to_bits()) | u32::from(v[1].to_bits()) << 16
});
lane!([bf16; 2], words, Words, u32, |v| [bf16::from_bits(v as u16), bf16::from_bits((v >> 16) as u16)], |v| {
    u32::from(v[0].to_bits()) | u32::from(v[1].to_bits()) << 16
});
lane!(u32, words, Words, u32, |v| v, |v| v);
lane!(i32, words, Words, u32, |v| v as i32, |v| v as u32);
lane!(f32, words, Words, u32, |v| f32::from_bits(v), |v| v.to_bits());
lane!(u64, wides, Wides, u64, |v| v, |v| v);
lane!(i64, wides, Wides, u64, |v| v as i64, |v| v as u64);
lane!(f64, wides, Wides, u64, |v| f64::from_bits(v), |v| v.to_bits());

impl Lane for bool {
    const FILE: File = File::Masks;
    type View<'a> = u32;
    type Buffer = u32;
    #[inline(always)]
    fn view(registers: &Registers, slot: u32) -> u32 {
        registers.masks[slot as usize]
    }
    #[inline(always)]
    fn get(view: u32, lane: usize) -> bool {
        view >> lane & 1 == 1
    }
    #[inline(always)]
    fn buffer() -> u32 {
        0
    }
    #[inline(always)]
    fn set(self, buffer: &mut u32, lane: usize) {
        *buffer |= u32::from(self) << lane;
    }
    #[inline(always)]
    fn commit(registers: &mut Registers, slot: u32, buffer: u32) {
        registers.masks[slot as usize] = buffer;
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        bits == 1
    }
    #[inline(always)]
    fn into_bits(self) -> u64 {
        self.into()
    }
}

/// Computes an operation for lane after lane. A register is given by its file and slot.
#[inline(never)]
pub(crate) fn each_lane(
    registers: &mut Registers,
    target: (File, u32),
    operands: &[(File, u32)],
    operation: fn([u64; 3]) -> u64,
) {
    let mut values = [[0; 3]; 32];
    for (at, &(file, slot)) in operands.iter().enumerate() {
        let slot = slot as usize;
        for (lane, values) in values.iter_mut().enumerate() {
            values[at] = match file {
                File::Words => registers.words[slot][lane].into(),
                File::Wides => registers.wides[slot][lane],
                File::Masks => (registers.masks[slot] >> lane & 1).into(),
            };
        }
    }
    let results = values.map(operation);
    let slot = target.1 as usize;
    match target.0 {
        File::Words => registers.words[slot] = Lanes(results.map(|bits| bits as u32)),
        File::Wides => registers.wides[slot] = Lanes(results),
        File::Masks => registers.masks[slot] = (0..32).fold(0, |mask, lane| mask | (results[lane] as u32) << lane),
    }
}

/// Makes a [`LaneOp`] from an expression on one lane's values.
macro_rules! lanes {
    (|$($operation:tt)+) => { $crate::lanes::lanes!(wide |$($operation)+) };
    ($form:ident |$a:ident: $A:ty| -> $D:ty $body:block) => {
        $crate::lanes::lanes!(@$form $D, $body, ($a, a, $A))
    };
    ($form:ident |$a:ident: $A:ty, $b:ident: $B:ty| -> $D:ty $body:block) => {
        $crate::lanes::lanes!(@$form $D, $body, ($a, a, $A), ($b, b, $B))
    };
    ($form:ident |$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| -> $D:ty $body:block) => {
        $crate::lanes::lanes!(@$form $D, $body, ($a, a, $A), ($b, b, $B), ($c, c, $C))
    };
    (@wide $D:ty, $body:block, $(($name:ident, $slot:ident, $T:ty)),+) => {{
        use $crate::lanes::{Lane, LaneOp, Registers, Slots};
        type Output = $D;
        #[inline(always)]
        fn compute(registers: &mut Registers, slots: Slots) {
            $(let $slot = <$T as Lane>::view(registers, slots.$slot);)+
            let mut result = <Output as Lane>::buffer();
            for lane in 0..32 {
                $(let $name = <$T as Lane>::get($slot, lane);)+
                let value: Output = $body;
                Lane::set(value, &mut result, lane);
            }
            Output::commit(registers, slots.d, result);
        }
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
        fn wide(registers: &mut Registers, slots: Slots) {
            compute(registers, slots);
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
        fn widest(registers: &mut Registers, slots: Slots) {
            compute(registers, slots);
        }
        #[cfg(target_arch = "x86_64")]
        let op = if $crate::vectors::has_avx512() {
            // SAFETY: `has_avx512` has just found every feature that the function is compiled for.
            unsafe { LaneOp::new(widest, <Output as Lane>::FILE) }
        } else if $crate::vectors::has_avx2() {
            // SAFETY: `has_avx2` has just found every feature that the function is compiled for.
            unsafe { LaneOp::new(wide, <Output as Lane>::FILE) }
        } else {
            $crate::lanes::lanes!(@rare $D, $body, $(($name, $slot, $T)),+)
        };
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the function is compiled for no feature beyond the features of the target.
        let op = unsafe { LaneOp::new(wide, <Output as Lane>::FILE) };
        op
    }};
    (@rare $D:ty, $body:block, $(($name:ident, $slot:ident, $T:ty)),+) => {{
        use $crate::lanes::{Lane, LaneOp, Registers, Slots, each_lane};
        fn one([$($name,)+ ..]: [u64; 3]) -> u64 {
            $(let $name = <$T as Lane>::from_bits($name);)+
            let value: $D = $body;
            value.into_bits()
        }
        fn short(registers: &mut Registers, slots: Slots) {
            let operands = [$((<$T as Lane>::FILE, slots.$slot)),+];
            each_lane(registers, (<$D as Lane>::FILE, slots.d), &operands, one);
        }
        // SAFETY: the function is compiled for no feature beyond the features of the target.
        unsafe { LaneOp::new(short, <$D as Lane>::FILE) }
    }};
}
pub(crate) use lanes;

/// [`lanes!`] for a rare operation, which has no vectors on any processor.
macro_rules! rare_lanes {
    ($($operation:tt)+) => { $crate::lanes::lanes!(rare $($operation)+) };
}
pub(crate) use rare_lanes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lanes_of_the_mask_are_written() {
        let mut registers =
            Registers { words: vec![Lanes([7; 32]), Lanes([1; 32]), Lanes([2; 32])], wides: vec![], masks: vec![] };
        let add = lanes!(|a: u32, b: u32| -> u32 { a + b });
        add.run(&mut registers, Slots { d: 0, a: 1, b: 2, c: 0 }, 0x8000_0001);
        assert_eq!((registers.words[0][0], registers.words[0][1], registers.words[0][31]), (3, 7, 3));
        add.run(&mut registers, Slots { d: 0, a: 1, b: 1, c: 0 }, 0);
        assert_eq!(registers.words[0][0], 3);
    }

    #[test]
    fn narrow_values_keep_the_upper_half_zero() {
        let mut registers = Registers { words: vec![Lanes([0xffff_ffff; 32]); 2], wides: vec![], masks: vec![0] };
        lanes!(|a: i16| -> i16 { a }).run(&mut registers, Slots { d: 0, a: 1, b: 0, c: 0 }, !0);
        assert_eq!(registers.words[0][3], 0xffff);
        lanes!(|a: i32| -> bool { a < 0 }).run(&mut registers, Slots { d: 0, a: 1, b: 0, c: 0 }, 0xf0);
        assert_eq!(registers.masks[0], 0xf0);
    }
}
