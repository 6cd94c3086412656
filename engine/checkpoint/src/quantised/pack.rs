//! Groups of the types for safetensors files, built from the tensors of those files.

use super::QuantType;

/// Selects the 4-bit type with the longest groups that divide both groups of `group` elements and rows of `cols`.
pub(crate) fn int4_type(group: usize, cols: usize) -> Option<QuantType> {
    let kinds = [QuantType::Int4G128, QuantType::Int4G64, QuantType::Int4G32];
    kinds.into_iter().find(|kind| group.is_multiple_of(kind.group()) && cols.is_multiple_of(kind.group()))
}

/// Selects the FP8 type with the longest groups that divide both blocks of `block` columns and rows of `cols`.
pub(crate) fn fp8_type(block: usize, cols: usize) -> Option<QuantType> {
    let kinds = [QuantType::Fp8G128, QuantType::Fp8G32];
    kinds.into_iter().find(|kind| block.is_multiple_of(kind.group()) && cols.is_multiple_of(kind.group()))
}

/// Writes a group of a 4-bit type. The integers must be below 16 and as many as the group size. An element is `scale *
/// (quant - zero)`.
pub(crate) fn pack_int4(scale: f32, zero: u8, quants: &[u8], to: &mut [u8]) {
    to[..4].copy_from_slice(&scale.to_le_bytes());
    to[4] = zero;
    for (part, to) in quants.as_chunks::<32>().0.iter().zip(to[5..].as_chunks_mut::<16>().0) {
        *to = std::array::from_fn(|i| part[i] | part[i + 16] << 4);
    }
}

/// Writes a group of MXFP4. Each byte of `pairs` has the codes of two neighbours, the first in the lower half, as in
/// safetensors files. A GGUF group has the first sixteen codes in the lower halves.
pub(crate) fn pack_mxfp4(exponent: u8, pairs: &[u8; 16], to: &mut [u8]) {
    let code = |i: usize| pairs[i / 2] >> (i % 2 * 4) & 15;
    to[0] = exponent;
    to[1..].iter_mut().enumerate().for_each(|(i, to)| *to = code(i) | code(i + 16) << 4);
}

/// Writes a group of FP8 codes. An element is `scale` times the code's number.
pub(crate) fn pack_fp8(scale: f32, codes: &[u8], to: &mut [u8]) {
    to[..4].copy_from_slice(&scale.to_le_bytes());
    to[4..].copy_from_slice(codes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_follow_the_formula() {
        for kind in [QuantType::Int4G32, QuantType::Int4G64, QuantType::Int4G128] {
            let quants: Vec<u8> = (0..kind.group()).map(|i| (i * 7 % 16) as u8).collect();
            let mut bytes = vec![0; kind.group_bytes()];
            pack_int4(0.37, 9, &quants, &mut bytes);
            let mut elements = vec![f32::NAN; kind.group()];
            kind.decode(&bytes, &mut elements);
            let want: Vec<f32> = quants.iter().map(|&quant| 0.37 * (f32::from(quant) - 9.0)).collect();
            assert_eq!(elements, want, "{kind}");
        }
    }

    #[test]
    fn fp8_codes_decode_as_in_the_standard() {
        let codes: Vec<u8> = [0x00, 0x01, 0x07, 0x08, 0x38, 0x3c, 0x7e, 0x80, 0xb8, 0xfe].repeat(13)[..128].to_vec();
        let numbers = [0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0, 1.0, 1.5, 448.0, 0.0, -1.0, -448.0].repeat(13);
        let mut bytes = vec![0; QuantType::Fp8G128.group_bytes()];
        pack_fp8(0.37, &codes, &mut bytes);
        let mut elements = vec![f32::NAN; 128];
        QuantType::Fp8G128.decode(&bytes, &mut elements);
        assert!(elements.iter().zip(&numbers).all(|(x, number)| *x == 0.37 * number), "{elements:?}");
    }

    #[test]
    fn neighbours_become_halves_of_a_group() {
        let pairs: [u8; 16] = std::array::from_fn(|i| (2 * i % 16) as u8 | ((2 * i % 16 + 1) as u8) << 4);
        let mut bytes = [0; 17];
        pack_mxfp4(129, &pairs, &mut bytes);
        let mut elements = [f32::NAN; 32];
        QuantType::MXFP4.decode(&bytes, &mut elements);
        let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
        assert_eq!(elements.to_vec(), numbers.map(|number| 4.0 * number).repeat(2));
    }

    #[test]
    fn the_longest_groups_that_fit_are_chosen() {
        assert_eq!(int4_type(4096, 4096), Some(QuantType::Int4G128));
        assert_eq!(int4_type(192, 384), Some(QuantType::Int4G64));
        assert_eq!(int4_type(128, 96), Some(QuantType::Int4G32));
        assert_eq!(int4_type(48, 96), None);
        assert_eq!(fp8_type(128, 256), Some(QuantType::Fp8G128));
        assert_eq!(fp8_type(128, 192), Some(QuantType::Fp8G32));
        assert_eq!(fp8_type(128, 100), None);
    }
}
