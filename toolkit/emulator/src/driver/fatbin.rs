//! Fatbins: containers with code for several kinds of GPUs, as `nvcc` and `fatbinary` create them.
//!
//! A header is followed by entries. Each entry has its own header and a payload (PTX, SASS or other data), which may be
//! compressed. NVIDIA does not document the format. The fields below were found by other tools that read it.

/// The magic number at the start of a fatbin.
pub(super) const MAGIC: [u8; 4] = 0xba55_ed50u32.to_le_bytes();
/// Bytes of the fatbin header: magic number, version, header size and the size of the rest.
pub(super) const HEADER: usize = 16;

/// The kind of entry that holds PTX.
const PTX: u16 = 1;
/// The bytes of an entry header that all versions share.
const ENTRY: usize = 64;
/// Flags of an entry: the compression of its payload.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..size].copy_from_slice(bytes.get(at..at.checked_add(size)?)?);
    Some(u64::from_le_bytes(number))
}

/// The size of a fatbin in bytes, according to its header.
pub(super) fn size(header: &[u8]) -> Option<usize> {
    let (own, rest) = (number(header, 6, 2)?, number(header, 8, 8)?);
    usize::try_from(own.checked_add(rest)?).ok().filter(|&size| size >= HEADER)
}

/// Returns the PTX texts of a fatbin, each with the architecture number of its entry.
pub(super) fn ptx(fatbin: &[u8]) -> Result<Vec<(u32, String)>, String> {
    let truncated = || "the fatbin is truncated".to_owned();
    let end = size(fatbin).filter(|&end| end <= fatbin.len()).ok_or_else(truncated)?;
    let mut at = number(fatbin, 6, 2).ok_or_else(truncated)? as usize;
    let mut texts = Vec::new();
    while at + ENTRY <= end {
        let field = |offset, size| number(fatbin, at + offset, size).ok_or_else(truncated);
        let (kind, header, stored) = (field(0, 2)? as u16, field(4, 4)? as usize, field(8, 8)? as usize);
        let (architecture, flags) = (field(28, 4)? as u32, field(40, 8)?);
        let next = at.checked_add(header).and_then(|start| start.checked_add(stored)).ok_or_else(truncated)?;
        let payload = fatbin.get(at + header..next).ok_or_else(truncated)?;
        if kind == PTX {
            let (compressed, full) = (field(16, 4)? as usize, field(56, 8)? as usize);
            let bytes = if flags & (LZ4 | ZSTD) == 0 {
                payload.to_vec()
            } else {
                let payload = payload.get(..compressed).ok_or_else(truncated)?;
                let unpacked = if flags & LZ4 != 0 { unpack_lz4(payload, full) } else { unpack_zstd(payload) };
                unpacked.map_err(|why| format!("the fatbin's PTX cannot be unpacked: {why}"))?
            };
            let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
            let text = std::str::from_utf8(text).map_err(|_| "the fatbin's PTX is not valid UTF-8".to_owned())?;
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
