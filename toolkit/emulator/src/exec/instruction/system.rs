//! Functions that every GPU provides. `assert`, `printf`, `malloc` and `free` of CUDA C++ call them.

use super::space::space_of;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{SystemCall, SystemFunction};
use crate::ptx::ast::Space;

/// The most bytes of a string.
const LONGEST: u64 = 4096;
/// The most bytes of one `malloc`. This is the whole heap of a GPU, unless a program asks for more.
const HEAP: u64 = 8 << 20;
/// The function name that `cuda_std` passes to `__assertfail` when a kernel panics.
const RUST: &str = "Rust";
/// The name of memory from `malloc` in faults.
const ALLOCATED: &str = "memory from malloc";

/// Calls a function that every GPU provides.
pub(crate) fn call(env: &mut BlockEnv<'_>, warp: &mut Warp, call: &SystemCall, mask: u32) -> Checked<()> {
    let private = env.launch.program.private;
    for lane in lanes(mask) {
        let argument = |warp: &Warp, index: usize| number(&warp.private[lane * private + call.arguments[index]..], 8);
        match call.function {
            SystemFunction::AssertFail => {
                let at = |index| argument(warp, index);
                let (text, file) = (text(env, warp, lane, at(0))?, self::text(env, warp, lane, at(1))?);
                let (line, function) = (at(2) as u32, self::text(env, warp, lane, at(3))?);
                let message = match function.as_str() {
                    RUST => "a Rust panic (an index out of bounds, an `unwrap`, an `assert!`)".to_owned(),
                    _ => format!("the assertion `{text}` of `{function}` does not hold, at {file}:{line}"),
                };
                return Err(Violation::new(FaultKind::Assertion, message).lane(lane).source(file, line));
            }
            SystemFunction::Print => {
                let (format, arguments) = (argument(warp, 0), argument(warp, 1));
                let text = formatted(env, warp, lane, format, arguments)?;
                print!("{text}");
                if let Some(result) = call.result {
                    let at = lane * private + result;
                    warp.private[at..at + 4].copy_from_slice(&(text.len() as u32).to_le_bytes());
                }
            }
            SystemFunction::Allocate => {
                let bytes = argument(warp, 0);
                let address = if bytes > HEAP { 0 } else { env.memory.allocate(ALLOCATED, bytes as usize) };
                if let Some(result) = call.result {
                    let at = lane * private + result;
                    warp.private[at..at + 8].copy_from_slice(&address.to_le_bytes());
                }
            }
            SystemFunction::Free => free(env, argument(warp, 0)).map_err(|violation| violation.lane(lane))?,
        }
    }
    Ok(())
}

/// Frees memory from `malloc`. Address 0 is ignored.
fn free(env: &mut BlockEnv<'_>, address: u64) -> Checked<()> {
    if address == 0 {
        return Ok(());
    }
    let (index, offset) = env.memory.locate(address, 0)?;
    let buffer = &mut env.memory.buffers[index];
    if offset != 0 || buffer.name != ALLOCATED {
        let message = format!("`free` of {address:#x}, which is not the beginning of {ALLOCATED}");
        return Err(Violation::new(FaultKind::OutOfBounds, message).address(address));
    }
    buffer.free();
    Ok(())
}

/// Converts the first `size` bytes to a number.
fn number(bytes: &[u8], size: usize) -> u64 {
    bytes.iter().take(size).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Returns bytes at a generic address of a lane.
fn bytes<'a>(env: &'a mut BlockEnv<'_>, warp: &'a Warp, lane: usize, at: u64, count: usize) -> Checked<&'a [u8]> {
    let (space, base) = space_of(at);
    if space == Space::Local {
        let (size, offset) = (env.launch.program.private, (at - base) as usize);
        let own = &warp.private[lane * size..][..size];
        return own.get(offset..offset + count).ok_or_else(|| {
            let message = format!("{count} bytes at offset {offset:#x} of local memory, which has {size} bytes");
            Violation::new(FaultKind::OutOfBounds, message).lane(lane).address(at)
        });
    }
    let (index, offset) = env.memory.locate(at, count).map_err(|violation| violation.lane(lane))?;
    env.memory.fetch(index, offset, count);
    Ok(&env.memory.buffers[index].data[offset..offset + count])
}

/// Returns the string at a generic address, up to its terminating zero.
fn text(env: &mut BlockEnv<'_>, warp: &Warp, lane: usize, at: u64) -> Checked<String> {
    let mut text = Vec::new();
    for next in at..at.saturating_add(LONGEST) {
        match bytes(env, warp, lane, next, 1)?[0] {
            0 => break,
            byte => text.push(byte),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Formats a `printf`. The arguments follow each other, each at a multiple of its size.
fn formatted(env: &mut BlockEnv<'_>, warp: &Warp, lane: usize, format: u64, arguments: u64) -> Checked<String> {
    let format = text(env, warp, lane, format)?;
    let mut at = arguments;
    let mut out = String::new();
    let mut rest = format.as_str();
    while let Some(start) = rest.find('%') {
        out += &rest[..start];
        rest = &rest[start + 1..];
        let end = rest.find(|c: char| !"-+ #0123456789.lhzjt".contains(c)).unwrap_or(rest.len());
        let (flags, conversion) = (&rest[..end], rest[end..].chars().next());
        rest = &rest[end + conversion.map_or(0, char::len_utf8)..];
        let Some(conversion) = conversion else { break };
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let is_wide = flags.contains(['l', 'z', 'j', 't']) || "fFeEgGaAsp".contains(conversion);
        let size = if is_wide { 8 } else { 4 };
        at = at.next_multiple_of(size as u64);
        let bits = number(bytes(env, warp, lane, at, size)?, size);
        at += size as u64;
        let argument =
            if conversion == 's' { text(env, warp, lane, bits)? } else { shown(conversion, flags, bits, is_wide) };
        out += &padded(&argument, flags);
    }
    Ok(out + rest)
}

/// Returns the precision in a conversion's flags.
fn precision(flags: &str) -> Option<usize> {
    flags.split_once('.').map(|(_, digits)| digits.trim_end_matches(char::is_alphabetic).parse().unwrap_or(0))
}

/// Formats a number for a conversion.
fn shown(conversion: char, flags: &str, bits: u64, is_wide: bool) -> String {
    let float = f64::from_bits(bits);
    let signed = if is_wide { bits as i64 } else { i64::from(bits as i32) };
    let text = match conversion {
        'd' | 'i' => signed.to_string(),
        'u' => bits.to_string(),
        'x' => format!("{bits:x}"),
        'X' => format!("{bits:X}"),
        'o' => format!("{bits:o}"),
        'p' => format!("{bits:#x}"),
        'c' => char::from(bits as u8).to_string(),
        'f' | 'F' => format!("{float:.*}", precision(flags).unwrap_or(6)),
        'e' | 'E' => {
            let text = format!("{float:.*e}", precision(flags).unwrap_or(6));
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{mantissa}{}{}{:02}", conversion, if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => float.to_string(), // the shortest text with the exact value, where C prints six digits
    };
    if flags.contains('+') && !text.starts_with('-') && "dif".contains(conversion) { format!("+{text}") } else { text }
}

/// Pads a text to the width in a conversion's flags.
fn padded(text: &str, flags: &str) -> String {
    let marks = flags.trim_start_matches(['-', '+', ' ', '#', '0']);
    let width: usize =
        marks.split(|c: char| !c.is_ascii_digit()).next().and_then(|width| width.parse().ok()).unwrap_or(0);
    let signs = &flags[..flags.len() - marks.len()];
    let missing = width.min(LONGEST as usize).saturating_sub(text.chars().count());
    match (signs.contains('-'), signs.contains('0')) {
        (true, _) => format!("{text}{}", " ".repeat(missing)),
        (false, true) => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        (false, false) => format!("{}{text}", " ".repeat(missing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_c_shows_them() {
        let show = |conversion, flags, bits, is_wide| padded(&shown(conversion, flags, bits, is_wide), flags);
        assert_eq!(show('d', "5", u64::from(-3i32 as u32), false), "   -3");
        assert_eq!(show('d', "05", u64::from(-3i32 as u32), false), "-0003");
        assert_eq!(show('u', "-4l", 7, true), "7   ");
        assert_eq!(show('x', "", 255, false), "ff");
        assert_eq!(show('f', ".2", 1.005f64.to_bits(), true), "1.00");
        assert_eq!(show('f', "+", 1.5f64.to_bits(), true), "+1.500000");
        assert_eq!(show('e', ".1", 12345f64.to_bits(), true), "1.2e+04");
        assert_eq!(show('c', "", 65, false), "A");
    }
}
