//! The model that is compiled into the program. A first run needs neither network nor download.

use std::path::Path;

use super::safetensors;
use super::weights::Weights;
use crate::error::Result;
use crate::tensor::DType;

/// The model's name.
pub(super) const NAME: &str = "opt-story-3m";

/// Bytes aligned for every element type.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../model/model.safetensors"));

/// The text files, by name.
static FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../../model/config.json")),
    ("generation_config.json", include_bytes!("../../../model/generation_config.json")),
    ("special_tokens_map.json", include_bytes!("../../../model/special_tokens_map.json")),
    ("tokenizer.json", include_bytes!("../../../model/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../model/tokenizer_config.json")),
];

/// Returns the contents of a text file.
pub(super) fn file(name: &str) -> Option<&'static [u8]> {
    FILES.iter().find(|(file, _)| *file == name).map(|(_, contents)| *contents)
}

/// Returns the weights. They are used in place, without a copy.
pub(super) fn weights(dtype: Option<DType>) -> Result<Weights> {
    let path = Path::new(NAME);
    Weights::new(path, safetensors::open_static(&WEIGHTS.0, path)?, dtype)
}
