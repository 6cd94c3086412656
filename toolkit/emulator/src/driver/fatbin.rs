//! Fatbins: containers with code for several kinds of GPUs, as `nvcc` and `fatbinary` make them.
//!
//! A header is followed by entries, each of which has a header of its own and a payload: PTX, SASS or other things, as it is or
//! compressed. NVIDIA does not document the format; these are the fields that tools for it have found out.

/// What a fatbin begins with.
pub(super) const MAGIC: [u8; 4] = 0xba55_ed50u32.to_le_bytes();
/// Bytes of its header: magic number, version, the header's size, and the size of what follows.
pub(super) const HEADER: usize = 16;

/// Kinds of entries.
const PTX: u16 = 1;
/// Bytes of an entry's header that every version has.
const ENTRY: usize = 64;
/// Bits of an entry: its payload is compressed.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..size].copy_from_slice(bytes.get(at..at.checked_add(size)?)?);
    Some(u64::from_le_bytes(number))
}

/// How many bytes a fatbin has, by its header.
pub(super) fn size(header: &[u8]) -> Option<usize> {
    let (own, rest) = (number(header, 6, 2)?, number(header, 8, 8)?);
    usize::try_from(own.checked_add(rest)?).ok().filter(|&size| size >= HEADER)
}

/// The PTX texts of a fatbin, each with the number of the architecture that its entry names.
pub(super) fn ptx(fatbin: &[u8]) -> Result<Vec<(u32, String)>, String> {
    let cut = || "the fatbin ends too early".to_owned();
    let end = size(fatbin).filter(|&end| end <= fatbin.len()).ok_or_else(cut)?;
    let mut at = number(fatbin, 6, 2).ok_or_else(cut)? as usize;
    let mut texts = Vec::new();
    while at + ENTRY <= end {
        let field = |offset, size| number(fatbin, at + offset, size).ok_or_else(cut);
        let (kind, header, stored) = (field(0, 2)? as u16, field(4, 4)? as usize, field(8, 8)? as usize);
        let (architecture, flags) = (field(28, 4)? as u32, field(40, 8)?);
        let next = at.checked_add(header).and_then(|start| start.checked_add(stored)).ok_or_else(cut)?;
        let payload = fatbin.get(at + header..next).ok_or_else(cut)?;
        if kind == PTX {
            let (compressed, full) = (field(16, 4)? as usize, field(56, 8)? as usize);
            let bytes = if flags & (LZ4 | ZSTD) == 0 {
                payload.to_vec()
            } else {
                let payload = payload.get(..compressed).ok_or_else(cut)?;
                let unpacked = if flags & LZ4 != 0 { unpack_lz4(payload, full) } else { unpack_zstd(payload) };
                unpacked.map_err(|why| format!("the fatbin's PTX cannot be unpacked: {why}"))?
            };
            let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            let text = std::str::from_utf8(text).map_err(|_| "the fatbin's PTX is no text".to_owned())?;
            texts.push((architecture, text.to_owned()));
        }
        at = next;
    }
    Ok(texts)
}

fn unpack_lz4(payload: &[u8], full: usize) -> Result<Vec<u8>, String> {
    lz4_flex::block::decompress(payload, full).map_err(|error| error.to_string())
}

fn unpack_zstd(payload: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut stream = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| error.to_string())?;
    std::io::Read::read_to_end(&mut stream, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
