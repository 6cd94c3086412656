//! Fuzzes the header of a safetensors file.

#![no_main]

use engine::tools::load::safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for tensor in safetensors::describe(data).unwrap_or_default() {
        assert!(tensor.offset.checked_add(tensor.len).is_some_and(|end| end <= data.len()));
    }
});
