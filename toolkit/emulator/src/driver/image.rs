//! Code images as programs pass them: PTX, or a fatbin with PTX for several kinds of GPUs.

use super::fatbin;
use super::options::DeviceOptions;
use super::result_code::{Compiled, Result, ResultCode};
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};

/// The magic number of an ELF image, which holds SASS that only NVIDIA's tools can read.
const ELF: [u8; 4] = *b"\x7fELF";
/// The magic number of the fatbin wrapper that compilers leave in programs.
const WRAPPER: [u8; 4] = 0x4662_43b1u32.to_le_bytes();

/// Code that a program wants to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CodeImage {
    /// PTX.
    Text(String),
    /// A fatbin.
    Fatbin(Vec<u8>),
    /// SASS.
    Sass,
}

/// `__fatBinC_Wrapper_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
}

impl CodeImage {
    /// Reads the image at an address. Its first bytes give its kind, and its content gives its end.
    ///
    /// # Safety
    /// The address must be null or point to zero-terminated PTX, a cubin, a fatbin or a fatbin wrapper.
    pub unsafe fn from_address(address: *const c_void) -> Result<Self> {
        if address.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: this function's contract. `begins_with` never reads past the end of the image.
        let begins = |magic: [u8; 4]| unsafe { begins_with(address.cast(), magic) };
        if begins(ELF) {
            return Ok(Self::Sass);
        }
        if begins(WRAPPER) {
            // SAFETY: the magic number shows that this is a fatbin wrapper, which contains the fatbin's address.
            return unsafe { Self::from_address(address.cast::<Wrapper>().read_unaligned().data) };
        }
        if begins(fatbin::MAGIC) {
            // SAFETY: the magic number shows that this is a fatbin, which has a header.
            let header = unsafe { address.cast::<[u8; fatbin::HEADER]>().read_unaligned() };
            let bytes = fatbin::size(&header).ok_or(ResultCode::InvalidImage)?;
            // SAFETY: a fatbin has the size that its header gives.
            let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) };
            return Ok(Self::Fatbin(bytes.to_vec()));
        }
        // SAFETY: by this function's contract, the only remaining kind is zero-terminated PTX.
        let text = unsafe { CStr::from_ptr(address.cast::<c_char>()) };
        text.to_str().map(|text| Self::Text(text.to_owned())).map_err(|_| ResultCode::InvalidImage)
    }

    /// Reads an image from bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.starts_with(&ELF) {
            return Ok(Self::Sass);
        }
        if bytes.starts_with(&fatbin::MAGIC) {
            return Ok(Self::Fatbin(bytes.to_vec()));
        }
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| ResultCode::InvalidImage)?;
        Ok(Self::Text(text.to_owned()))
    }

    /// Reads an image from a file.
    pub fn from_file(path: &str) -> Result<Self> {
        Self::from_bytes(&std::fs::read(path).map_err(|_| ResultCode::FileNotFound)?)
    }

    /// Returns the image's PTX for the newest architecture that the device can run.
    pub fn ptx(&self, options: &DeviceOptions) -> Compiled<Cow<'_, str>> {
        let (major, minor) = options.capability;
        let sass = "holds machine code (SASS), which the emulator does not execute: it needs PTX";
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Sass => Err((ResultCode::NoBinary, format!("the image {sass}, which compilers emit with `-ptx`"))),
            Self::Fatbin(bytes) => {
                let texts = fatbin::ptx(bytes).map_err(|why| (ResultCode::InvalidImage, why))?;
                if texts.is_empty() {
                    let text =
                        format!("the fatbin only {sass}, which `nvcc -gencode arch=compute_80,code=compute_80` adds");
                    return Err((ResultCode::NoBinary, text));
                }
                let fitting = texts.iter().filter(|(_, text)| options.runs(target(text)));
                let best = fitting.max_by_key(|(architecture, _)| *architecture);
                best.map(|(_, text)| Cow::Owned(text.clone())).ok_or_else(|| {
                    let targets: Vec<&str> = texts.iter().map(|(_, text)| target(text)).collect();
                    let targets = targets.join(", ");
                    (ResultCode::NoBinary, format!("PTX for {targets} on a device of capability {major}.{minor}"))
                })
            }
        }
    }
}

/// Whether the bytes at an address begin with a magic number. Stops reading at the first difference.
///
/// # Safety
/// At least one byte must be readable, and the next byte must be readable after any byte that equals the magic number
/// so far.
unsafe fn begins_with(address: *const u8, magic: [u8; 4]) -> bool {
    // SAFETY: a text ends with a zero, which no magic number contains, so reading stops there.
    (0..4).all(|index| unsafe { address.add(index).read() } == magic[index])
}

/// The target that a PTX text declares.
fn target(text: &str) -> &str {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(".target"));
    line.and_then(|line| line.split([',', ' ', '\t']).find(|word| !word.is_empty())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    #[test]
    fn the_first_bytes_of_an_image_give_its_kind() {
        let at = |bytes: &[u8]| {
            // SAFETY: each input is zero-terminated or starts with a complete magic number that `at` reads no further.
            unsafe { CodeImage::from_address(bytes.as_ptr().cast()) }
        };
        assert_eq!(at(b".version 8.0\0").unwrap(), CodeImage::Text(".version 8.0".into()));
        assert_eq!(at(b"\x7f\0").unwrap(), CodeImage::Text("\x7f".into()));
        assert_eq!(at(b"\x7fELF").unwrap(), CodeImage::Sass);
        assert_eq!(CodeImage::from_bytes(b"text\0\0").unwrap(), CodeImage::Text("text".into()));
        assert!(CodeImage::Sass.ptx(&DeviceOptions::default()).unwrap_err().1.contains("SASS"));
    }

    #[test]
    fn the_target_is_the_first_word_after_its_directive() {
        assert_eq!(target("// x\n.version 8.0\n.target sm_90a, debug\n"), "sm_90a");
        assert_eq!(target("no"), "");
    }
}
