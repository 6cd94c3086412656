//! Fuzzes the header of a GGUF file.

#![no_main]

use engine::tools::load::gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut end = 0;
    for tensor in gguf::describe(data).unwrap_or_default() {
        assert!(tensor.offset >= end && tensor.offset.checked_add(tensor.len).is_some_and(|end| end <= data.len()));
        end = tensor.offset + tensor.len;
    }
});
