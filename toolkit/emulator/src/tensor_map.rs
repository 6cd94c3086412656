//! Tensor maps, which describe tensors to `cp.async.bulk.tensor`.

use crate::memory::DeviceAddress;

/// How 16-byte pieces of a tile are permuted in shared memory, so that neither rows nor columns have bank conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swizzle {
    /// No permutation.
    #[default]
    None,
    /// Permutes two pieces within 32 bytes.
    Bytes32,
    /// Permutes four pieces within 64 bytes.
    Bytes64,
    /// Permutes eight pieces within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// Returns the bytes in a row of the pattern, or 16 without a pattern.
    #[inline(always)]
    pub(crate) fn span(self) -> usize {
        16 << self as usize
    }

    /// Returns the permuted address of a byte in shared memory. Bits 7 and up choose the permutation of bits 4 and up.
    #[inline(always)]
    pub(crate) fn apply(self, address: usize) -> usize {
        address ^ (address >> 3) & (self.span() - 16)
    }
}

/// A tensor in global memory, and the tiles to copy from it. Dimensions are listed innermost first.
///
/// When encoded, it replaces the map that `cuTensorMapEncodeTiled` makes. The 128 bytes have a format of their own. A
/// kernel gets a pointer to them, aligned to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element.
    pub base: DeviceAddress,
    /// Bytes per element: 1, 2, 4 or 8.
    pub element_bytes: usize,
    /// The number of elements in each of the one to five dimensions.
    pub dimensions: Vec<u64>,
    /// Bytes from one index to the next in each dimension except the innermost, which is contiguous.
    pub strides: Vec<u64>,
    /// The number of elements of a tile in each dimension.
    pub tile: Vec<u32>,
    /// The permutation of a tile in shared memory.
    pub swizzle: Swizzle,
}

/// A violation of CUDA's rules for tensor maps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TensorMapError(String);

const MAGIC: u64 = u64::from_le_bytes(*b"QTensMap");

impl TensorMap {
    /// Bytes of an encoded map.
    pub const BYTES: usize = 128;

    /// Encodes the map. The error names the CUDA rule that it breaks.
    pub fn encode(&self) -> Result<[u8; Self::BYTES], TensorMapError> {
        self.check()?;
        let mut bytes = [0; Self::BYTES];
        let mut at = 0;
        let mut put = |value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
            at += value.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.base.to_le_bytes());
        put(&[self.dimensions.len() as u8, self.element_bytes as u8, self.swizzle as u8]);
        self.dimensions.iter().for_each(|&size| put(&((size - 1) as u32).to_le_bytes()));
        self.strides.iter().for_each(|stride| put(&stride.to_le_bytes()));
        self.tile.iter().for_each(|&size| put(&(size as u16).to_le_bytes()));
        Ok(bytes)
    }

    /// Decodes a map. Returns `None` if the bytes are not a map.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut take = |count: usize| -> Option<u64> {
            let (value, after) = rest.split_at_checked(count)?;
            rest = after;
            Some(value.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        };
        if take(8)? != MAGIC {
            return None;
        }
        let base = take(8)?;
        let (rank, element_bytes) = (take(1)?, take(1)? as usize);
        let swizzle = match take(1)? {
            0 => Swizzle::None,
            1 => Swizzle::Bytes32,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes128,
        };
        let dimensions = (0..rank).map(|_| Some(take(4)? + 1)).collect::<Option<_>>()?;
        let strides = (1..rank).map(|_| take(8)).collect::<Option<_>>()?;
        let tile = (0..rank).map(|_| Some(take(2)? as u32)).collect::<Option<_>>()?;
        Some(Self { base, element_bytes, dimensions, strides, tile, swizzle })
    }

    fn check(&self) -> Result<(), TensorMapError> {
        let rule = |kept: bool, rule: &str| if kept { Ok(()) } else { Err(TensorMapError(rule.to_string())) };
        let rank = self.dimensions.len();
        rule((1..=5).contains(&rank), "a tensor has one to five dimensions")?;
        rule(self.strides.len() == rank - 1 && self.tile.len() == rank, "strides and tile must fit the dimensions")?;
        rule(matches!(self.element_bytes, 1 | 2 | 4 | 8), "an element has 1, 2, 4 or 8 bytes")?;
        rule(self.base.is_multiple_of(16), "the address must be a multiple of 16")?;
        rule(self.dimensions.iter().all(|size| (1..=1 << 32).contains(size)), "a dimension has 1 to 2^32 elements")?;
        rule(self.strides.iter().all(|stride| stride.is_multiple_of(16)), "strides must be multiples of 16")?;
        rule(self.tile.iter().all(|size| (1..=256).contains(size)), "a tile has 1 to 256 elements in each dimension")?;
        let row = self.tile[0] as usize * self.element_bytes;
        rule(row.is_multiple_of(16), "a tile's rows must be multiples of 16 bytes")?;
        let fits = self.swizzle == Swizzle::None || row <= self.swizzle.span();
        rule(fits, "a tile's rows must not be longer than the swizzle's")
    }

    /// Returns the bytes of a tile in shared memory.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.tile.iter().map(|&size| size as usize).product::<usize>() * self.element_bytes
    }

    /// Returns the parts of a tile that are inside the tensor. Each part has an address, an offset in the tile, and a
    /// size.
    pub(crate) fn parts(&self, first: &[i32]) -> Vec<(DeviceAddress, usize, usize)> {
        let row = self.tile[0] as usize * self.element_bytes;
        // The elements from `low` to `high` of each row are inside.
        let start = i64::from(first[0]);
        let low = (-start).clamp(0, self.tile[0].into());
        let high = (self.dimensions[0] as i64 - start).clamp(low, self.tile[0].into());
        let rows = self.tile_bytes() / row;
        let mut parts = Vec::with_capacity(rows);
        for index in 0..rows {
            let (mut rest, mut address, mut inside) = (index, self.base, low < high);
            for axis in 1..self.tile.len() {
                let size = self.tile[axis] as usize;
                let at = i64::from(first[axis]) + (rest % size) as i64;
                rest /= size;
                inside &= (0..self.dimensions[axis] as i64).contains(&at);
                address = address.wrapping_add_signed(at.wrapping_mul(self.strides[axis - 1] as i64));
            }
            if inside {
                let bytes = self.element_bytes;
                let address = address.wrapping_add_signed((start + low) * bytes as i64);
                parts.push((address, index * row + low as usize * bytes, (high - low) as usize * bytes));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            base: 4096,
            element_bytes: 2,
            dimensions: vec![100, 7],
            strides: vec![208],
            tile: vec![64, 4],
            swizzle: Swizzle::Bytes128,
        }
    }

    #[test]
    fn a_map_survives_its_encoding() {
        let five = TensorMap {
            dimensions: vec![1 << 32, 2, 3, 4, 5],
            strides: vec![16, 32, 48, 64],
            tile: vec![8, 256, 1, 2, 3],
            ..map()
        };
        for map in [map(), five] {
            assert_eq!(TensorMap::decode(&map.encode().unwrap()), Some(map));
        }
        assert_eq!(TensorMap::decode(&[0; 128]), None);
        assert!(
            TensorMap { strides: vec![200], ..map() }.encode().unwrap_err().to_string().contains("multiples of 16")
        );
        assert!(TensorMap { swizzle: Swizzle::Bytes64, ..map() }.encode().is_err());
    }

    #[test]
    fn tiles_at_the_edges_are_cut() {
        assert_eq!(map().parts(&[0, 5]), [(4096 + 5 * 208, 0, 128), (4096 + 6 * 208, 128, 128)]);
        assert_eq!(map().parts(&[64, -3]), [(4096 + 128, 3 * 128, 72)]);
        assert_eq!(map().parts(&[-8, 0])[1], (4096 + 208, 128 + 16, 112));
        assert_eq!(map().parts(&[100, 0]), []);
    }

    #[test]
    fn swizzles_permute_pieces_of_16_bytes() {
        let rows = |swizzle: Swizzle| -> Vec<usize> { (0..8).map(|row| swizzle.apply(row * 128) / 16 % 8).collect() };
        assert_eq!(rows(Swizzle::Bytes128), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(rows(Swizzle::Bytes64), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(rows(Swizzle::Bytes32), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(rows(Swizzle::None), [0; 8]);
        assert_eq!(Swizzle::Bytes128.apply(128 + 17), 128 + 1);
    }
}
