//! The machine's memory, and models that are larger.

use std::fs;

use crate::config::{ModelConfig, ModelFamily};

const GIB: f64 = (1u64 << 30) as f64;

/// Returns the bytes of memory that the process may use, if the system says so: the machine's memory, or the limit of
/// the container.
pub(super) fn host_memory() -> Option<usize> {
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limits.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).min();
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    machine.into_iter().chain(limit).min()
}

/// Returns the total memory that `/proc/meminfo` shows.
fn total(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns a note if a model has experts and its weights are larger than the memory. Its experts then stay on disk.
pub(super) fn experts_on_disk(config: &ModelConfig, weights: usize, memory: Option<usize>) -> Option<String> {
    let memory = memory.filter(|memory| weights > *memory)?;
    let ModelFamily::Decoder(decoder) = &config.family else { return None };
    decoder.experts()?;
    let [weights, memory] = [weights, memory].map(|bytes| bytes as f64 / GIB);
    Some(format!(
        "weights of {weights:.1} GiB are larger than the memory of {memory:.1} GiB: experts are read from disk when they are \
         used"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn only_experts_that_do_not_fit_stay_on_disk() {
        let config = |text: &str| ModelConfig::from_json(text.as_bytes()).unwrap();
        let mixtral = config(r#"{"model_type": "mixtral"}"#);
        let (large, small) = (96 << 30, 24 << 30);
        let note = experts_on_disk(&mixtral, large, Some(small)).unwrap();
        assert!(note.starts_with("weights of 96.0 GiB are larger than the memory of 24.0 GiB"), "{note}");
        assert_eq!(experts_on_disk(&mixtral, small, Some(large)), None);
        assert_eq!(experts_on_disk(&mixtral, large, None), None);
        assert_eq!(experts_on_disk(&config(r#"{"model_type": "llama"}"#), large, Some(small)), None);
    }

    #[test]
    fn the_machine_s_memory_is_read() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       24536 kB\n"), Some(24536 * 1024));
        assert_eq!(total("MemTotal: many"), None);
        assert!(!cfg!(target_os = "linux") || host_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
