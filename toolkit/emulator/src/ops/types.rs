//! Types of PTX instructions.

/// The type of a PTX instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Predicate,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    B32,
    U32,
    S32,
    F32,
    B64,
    U64,
    S64,
    F64,
}

impl Type {
    /// Parses the name of a type.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pred" => Self::Predicate,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Returns its bytes in memory.
    pub fn bytes(self) -> u8 {
        match self {
            Self::Predicate | Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            _ => 4,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64) || self.is_half()
    }

    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F16x2 | Self::Bf16x2)
    }
}

/// Calls the macro `$op` with the integer type of Rust for `$ty`, and further arguments. Other types make the function
/// around it return `None`.
macro_rules! with_integer {
    ($ty:expr, $op:ident $($rest:tt)*) => {
        match $ty {
            Type::U8 => $op!(u8 $($rest)*),
            Type::S8 => $op!(i8 $($rest)*),
            Type::U16 => $op!(u16 $($rest)*),
            Type::S16 => $op!(i16 $($rest)*),
            Type::U32 => $op!(u32 $($rest)*),
            Type::S32 => $op!(i32 $($rest)*),
            Type::U64 => $op!(u64 $($rest)*),
            Type::S64 => $op!(i64 $($rest)*),
            _ => return None,
        }
    };
}
pub(super) use with_integer;
