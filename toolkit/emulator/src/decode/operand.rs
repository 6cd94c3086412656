//! Operands: registers, constants, symbols and addresses.

use super::decoder::{Decoded, Decoder};
use crate::ops::Type;
use crate::program::{Address, Register, Special, Value};
use crate::ptx::ast::{Function, Operand, Space, Variable, Width};
use crate::window::{PARAMETER_WINDOW, function_address};

fn width_of(ty: Type) -> Width {
    match ty {
        Type::Predicate => Width::Predicate,
        _ if ty.bytes() == 8 => Width::B64,
        _ if ty.bytes() == 4 => Width::B32,
        _ => Width::B16,
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = match name.rsplit_once('.') {
        Some((_, "x")) => 0,
        Some((_, "y")) => 1,
        Some((_, "z")) => 2,
        _ => 3,
    };
    Some(match name {
        "%tid.x" | "%tid.y" | "%tid.z" => Special::Thread(axis),
        "%ntid.x" | "%ntid.y" | "%ntid.z" => Special::BlockSize(axis),
        "%ctaid.x" | "%ctaid.y" | "%ctaid.z" => Special::Block(axis),
        "%nctaid.x" | "%nctaid.y" | "%nctaid.z" => Special::GridSize(axis),
        "%clusterid.x" | "%clusterid.y" | "%clusterid.z" => Special::Cluster(axis),
        "%nclusterid.x" | "%nclusterid.y" | "%nclusterid.z" => Special::GridClusters(axis),
        "%cluster_ctaid.x" | "%cluster_ctaid.y" | "%cluster_ctaid.z" => Special::ClusterBlock(axis),
        "%cluster_nctaid.x" | "%cluster_nctaid.y" | "%cluster_nctaid.z" => Special::ClusterShape(axis),
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterSize,
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::WarpCount,
        "%lanemask_lt" => Special::MaskLess,
        "%lanemask_le" => Special::MaskLessEqual,
        "%lanemask_eq" => Special::MaskEqual,
        "%lanemask_ge" => Special::MaskGreaterEqual,
        "%lanemask_gt" => Special::MaskGreater,
        "%dynamic_smem_size" => Special::DynamicSharedSize,
        "%total_smem_size" => Special::TotalSharedSize,
        "%smid" => Special::Multiprocessor,
        _ => return None,
    })
}

impl Decoder<'_> {
    /// Returns the declared width of a register, and its slot.
    pub(super) fn register(&mut self, name: &str) -> Option<(Width, u32)> {
        let width = *self.current().registers.get(name)?;
        let key = (self.function, name.to_string());
        if let Some(&slot) = self.registers.get(&key) {
            return Some((width, slot));
        }
        let slot = self.new_slot(width);
        self.registers.insert(key, slot);
        Some((width, slot))
    }

    pub(super) fn constant(&mut self, value: Value, wide: bool) -> u32 {
        if let Some(&slot) = self.constants.get(&(value, wide)) {
            return slot;
        }
        let slot = self.new_slot(if wide { Width::B64 } else { Width::B32 });
        self.constants.insert((value, wide), slot);
        self.program.constants.push((value, slot, wide));
        slot
    }

    pub(super) fn bits(&mut self, value: u64, wide: bool) -> u32 {
        self.constant(Value::Bits(if wide { value } else { value & 0xffff_ffff }), wide)
    }

    /// Returns the slot of an operand that is read with a type.
    pub(super) fn input(&mut self, operand: &Operand, ty: Type) -> Decoded<u32> {
        let wide = ty.bytes() == 8;
        match operand {
            Operand::Integer(value) if ty == Type::F32 || ty == Type::F64 => {
                Err(format!("`{value}` is not a floating-point number"))
            }
            Operand::Integer(_) if ty == Type::Predicate => Err("a predicate is needed".into()),
            Operand::Integer(value) => {
                let masked = if ty.bytes() <= 2 { value & 0xffff } else { *value };
                Ok(self.bits(masked, wide))
            }
            Operand::Single(bits) if wide => Ok(self.bits(f64::from(f32::from_bits(*bits)).to_bits(), true)),
            Operand::Single(bits) => Ok(self.bits((*bits).into(), false)),
            Operand::Double(value) if wide => Ok(self.bits(value.to_bits(), true)),
            Operand::Double(value) if ty.bytes() == 4 => Ok(self.bits((*value as f32).to_bits().into(), false)),
            Operand::Name(name) | Operand::Sum(name, _) => {
                if let Some((width, slot)) = self.register(name) {
                    self.check_width(name, width, ty)?;
                    self.read.push((width, slot));
                    return Ok(slot);
                }
                if let Some(special) = special(name) {
                    return Ok(self.constant(Value::Special(special), wide));
                }
                if name == "WARP_SZ" {
                    return Ok(self.bits(32, wide));
                }
                let offset = if let Operand::Sum(_, offset) = operand { *offset } else { 0 };
                let (_, value) = self.symbol(name, offset)?;
                Ok(self.constant(value, wide))
            }
            other => Err(format!("operand {other:?} is not supported here")),
        }
    }

    fn check_width(&mut self, name: &str, width: Width, ty: Type) -> Decoded<()> {
        let wanted = width_of(ty);
        // 8-bit values may be in registers of any width up to one word.
        let fits = width == wanted || (ty.bytes() == 1 && ty != Type::Predicate && width == Width::B32);
        if fits { Ok(()) } else { self.wrong(format!("register `{name}` is {width:?}, where {wanted:?} is needed")) }
    }

    /// Returns the slot of an operand that is written with a type. For `_`, nothing reads the slot.
    pub(super) fn output(&mut self, operand: &Operand, ty: Type) -> Decoded<u32> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(self.new_slot(width_of(ty))),
            Operand::Name(name) => {
                let Some((width, slot)) = self.register(name) else {
                    return self.wrong(format!("`{name}` is not a register"));
                };
                self.check_width(name, width, ty)?;
                self.written.push((width, slot));
                Ok(slot)
            }
            other => self.wrong(format!("{other:?} is not a register")),
        }
    }

    /// Returns the slot of an operand that `cvt` reads. The register may be wider than the type, up to one word.
    pub(super) fn converted(&mut self, operand: &Operand, ty: Type) -> Decoded<u32> {
        if let Operand::Name(name) = operand
            && let Some((width, slot)) = self.register(name)
            && ty.bytes() <= 2
            && matches!(width, Width::B16 | Width::B32)
        {
            self.read.push((width, slot));
            return Ok(slot);
        }
        self.input(operand, ty)
    }

    /// Returns the slot of an operand that `cvt` writes. The register may be wider than the type, up to one word.
    pub(super) fn converted_output(&mut self, operand: &Operand, ty: Type) -> Decoded<u32> {
        if let Operand::Name(name) = operand
            && let Some((width, slot)) = self.register(name)
            && ty.bytes() <= 2
            && matches!(width, Width::B16 | Width::B32)
        {
            self.written.push((width, slot));
            return Ok(slot);
        }
        self.output(operand, ty)
    }

    /// Returns a register of any width, for the elements of loads and stores.
    pub(super) fn element(&mut self, operand: &Operand, bytes: u8) -> Decoded<Register> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(Register { slot: 0, bits: 0 }),
            Operand::Name(name) => match self.register(name) {
                Some((Width::B16, slot)) if bytes <= 2 => Ok(Register { slot, bits: 16 }),
                Some((Width::B32, slot)) if bytes <= 4 => Ok(Register { slot, bits: 32 }),
                Some((Width::B64, slot)) => Ok(Register { slot, bits: 64 }),
                Some((width, _)) => Err(format!("register `{name}` is {width:?}, for {bytes} bytes")),
                None => self.wrong(format!("`{name}` is not a register")),
            },
            Operand::Integer(_) | Operand::Single(_) | Operand::Double(_) => {
                let ty = match bytes {
                    8 => Type::B64,
                    4 => Type::B32,
                    2 => Type::B16,
                    _ => Type::B8,
                };
                Ok(Register { slot: self.input(operand, ty)?, bits: if bytes == 8 { 64 } else { 32 } })
            }
            other => self.wrong(format!("{other:?} is not a register")),
        }
    }

    /// Returns the slot of a predicate, and whether it is negated.
    pub(super) fn predicate(&mut self, operand: &Operand) -> Decoded<(u32, bool)> {
        let (name, negated) = match operand {
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            other => return Err(format!("{other:?} is not a predicate")),
        };
        match self.register(name) {
            Some((Width::Predicate, slot)) => {
                self.read.push((Width::Predicate, slot));
                Ok((slot, negated))
            }
            _ => Err(format!("`{name}` is not a predicate")),
        }
    }

    /// Returns the space of a variable, and its address there.
    pub(super) fn symbol(&mut self, name: &str, offset: i64) -> Decoded<(Space, Value)> {
        let function = self.current();
        let own = function.variables.iter().find(|variable| variable.name == name);
        let (owner, variable): (usize, &Variable) = match own {
            Some(variable) => (self.function, variable),
            None => match self.source.variables.iter().find(|variable| variable.name == name) {
                Some(variable) => (usize::MAX, variable),
                None => return self.parameter_address(name, offset),
            },
        };
        let value = match variable.space {
            Space::Shared if variable.external => Value::DynamicShared { offset },
            Space::Shared | Space::Cluster => {
                let place = self.place(owner, variable, true);
                Value::Bits((place as u64).wrapping_add_signed(offset))
            }
            Space::Local | Space::Param | Space::Parameters => {
                let place = self.place(owner, variable, false);
                Value::Private { function: owner, place: place as i64 + offset }
            }
            Space::Global | Space::Generic => {
                let mut on_device = self.source.variables.iter().filter(|variable| variable.is_on_device());
                match on_device.position(|other| other.name == name) {
                    Some(variable) if owner == usize::MAX => Value::Global { variable, offset },
                    _ => return Err(format!("`{name}` has no address here")),
                }
            }
        };
        Ok((variable.space, value))
    }

    /// Returns the generic address of a kernel's parameter, or the address of a function.
    fn parameter_address(&mut self, name: &str, offset: i64) -> Decoded<(Space, Value)> {
        let is_function = |function: &Function| function.name == name && !function.entry && function.defined;
        if let Some(index) = self.source.functions.iter().position(is_function) {
            self.taken.push(index);
            let address = function_address(index).wrapping_add_signed(offset);
            return Ok((Space::Generic, Value::Bits(address)));
        }
        let parameter = self.parameters.iter().find(|parameter| parameter.name == name);
        let Some(parameter) = parameter.filter(|_| self.current().entry) else {
            return self.wrong(format!("`{name}` is unknown"));
        };
        let address = PARAMETER_WINDOW + parameter.offset as u64;
        Ok((Space::Generic, Value::Bits(address.wrapping_add_signed(offset))))
    }

    /// Places a variable in shared or private memory on its first use, and returns its offset.
    pub(super) fn place(&mut self, owner: usize, variable: &Variable, shared: bool) -> usize {
        let key = (owner, variable.name.clone());
        if let Some(&place) = self.placed.get(&key) {
            return place;
        }
        let end = if shared { &mut self.program.static_shared } else { &mut self.program.private };
        let place = end.next_multiple_of(variable.align.max(1));
        *end = place + variable.size;
        if variable.space == Space::Local {
            self.program.local += variable.size;
        }
        self.placed.insert(key, place);
        place
    }

    /// Decodes an address in brackets. Also returns the space if a symbol determines it.
    pub(super) fn address(&mut self, operand: &Operand) -> Decoded<(Address, Option<Space>)> {
        let Operand::Address(base, offset) = operand else { return Err(format!("{operand:?} is not an address")) };
        match &**base {
            Operand::Name(name) => match self.register(name) {
                Some((width @ (Width::B32 | Width::B64), slot)) => {
                    self.read.push((width, slot));
                    Ok((Address { slot, wide: width == Width::B64, offset: *offset }, None))
                }
                Some(_) => Err(format!("`{name}` is too narrow for an address")),
                None => {
                    let (space, value) = self.symbol(name, *offset)?;
                    Ok((Address { slot: self.constant(value, true), wide: true, offset: 0 }, Some(space)))
                }
            },
            Operand::Integer(value) => {
                Ok((Address { slot: self.bits(*value, true), wide: true, offset: *offset }, None))
            }
            other => Err(format!("{other:?} is not an address")),
        }
    }
}
