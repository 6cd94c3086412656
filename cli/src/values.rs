//! Parsers of option values that several commands share.

use std::time::Duration;

use engine::KvDtype;

/// Parses a whole number.
pub fn count(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| format!("{s:?} is not a whole number"))
}

/// Parses a random seed.
pub fn seed(s: &str) -> Result<u64, String> {
    s.parse().map_err(|_| format!("{s:?} is not a whole number"))
}

/// Parses a number.
pub fn number(s: &str) -> Result<f32, String> {
    s.parse().map_err(|_| format!("{s:?} is not a number"))
}

/// Parses an 8-bit element type of keys and values.
pub fn quantised_kv(s: &str) -> Result<KvDtype, String> {
    match s {
        "int8" => Ok(KvDtype::Int8),
        "fp8" | "fp8_e4m3" => Ok(KvDtype::Fp8),
        _ => Err(format!("{s:?} is neither int8 nor fp8")),
    }
}

/// Parses `on` or `off`.
pub fn switch(s: &str) -> Result<bool, String> {
    match s {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{s:?} is neither on nor off")),
    }
}

/// Parses a time in seconds. 0 is allowed.
pub fn seconds(s: &str) -> Result<Duration, String> {
    let seconds: f64 = s.parse().map_err(|_| format!("{s:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{s:?} is not a time"))
}

/// Parses a number of bytes with an optional unit. KB to TB are powers of 1000, KiB to TiB powers of 1024.
pub fn memory(s: &str) -> Result<usize, String> {
    let bad = || format!("{s:?} is not an amount of memory such as 512MB or 4GiB");
    let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
    let (amount, unit) = s.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024f64,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return Err(bad()),
    };
    let amount: f64 = amount.parse().map_err(|_| bad())?;
    Ok((amount * unit) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_units() {
        assert_eq!(memory("1024"), Ok(1024));
        assert_eq!(memory("1.5KiB"), Ok(1536));
        assert_eq!(memory("2 GB"), Ok(2_000_000_000));
        assert!(memory("GB").is_err() && memory("1XB").is_err() && memory("-1").is_err());
    }

    #[test]
    fn times_are_in_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("soon").is_err() && seconds("inf").is_err());
    }
}
