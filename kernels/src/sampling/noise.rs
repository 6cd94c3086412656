//! Random numbers addressed by seed, position and token instead of taken from a stream. The generator is Philox 4x32-10
//! (Salmon et al., 2011), the counter-based generator that GPUs use. One call serves four neighbouring tokens.

use crate::arithmetic::ln;

/// Upper bound of [`gumbel`], which is always smaller.
pub const MAX_GUMBEL: f32 = 16.7;

/// The random numbers of one choice.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: [u32; 2],
    position: [u32; 2],
}

impl Noise {
    /// Returns the noise at a position of the sequence with this seed.
    #[inline(always)]
    pub const fn new(seed: u64, position: u64) -> Self {
        Noise { key: [seed as u32, (seed >> 32) as u32], position: [position as u32, (position >> 32) as u32] }
    }

    /// Returns the random bits of the four tokens from `4 * quad` on.
    #[inline(always)]
    pub fn bits(&self, quad: u32) -> [u32; 4] {
        philox([quad, 0, self.position[0], self.position[1]], self.key)
    }

    /// Returns a token's sample of the standard Gumbel distribution.
    #[inline(always)]
    pub fn gumbel(&self, token: u32) -> f32 {
        let [a, b, c, d] = self.bits(token / 4);
        gumbel(match token % 4 {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        })
    }
}

/// Converts random bits to a sample of the standard Gumbel distribution.
#[inline(always)]
pub fn gumbel(bits: u32) -> f32 {
    // 23 bits and a half: strictly between 0 and 1, and exact in f32.
    let u = ((bits >> 9) as f32 + 0.5) * (1.0 / (1 << 23) as f32);
    -ln(-ln(u))
}

#[inline(always)]
fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn the_noise_stays_below_its_bound() {
        assert!(gumbel(u32::MAX) < MAX_GUMBEL && gumbel(u32::MAX) > MAX_GUMBEL - 0.1);
        assert!((-2.9..-2.7).contains(&gumbel(0)));
    }
}
