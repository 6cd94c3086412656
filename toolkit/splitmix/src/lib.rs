//! SplitMix64, a generator of random numbers that are the same on every machine. A seed is the first state.
#![no_std]

/// Returns the next 64 random bits.
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mix(*state)
}

/// Maps numbers to numbers one to one, and neighbours far apart. It is the generator's last stage.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns a number within [-1, 1).
#[inline]
pub fn unit(state: &mut u64) -> f64 {
    (next(state) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Puts items in a random order.
pub fn shuffle<T>(state: &mut u64, items: &mut [T]) {
    for index in (1..items.len()).rev() {
        items.swap(index, (next(state) % (index as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_stream_is_the_published_one() {
        let mut state = 1_234_567;
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(published.map(|_| super::next(&mut state)), published);
    }
}
