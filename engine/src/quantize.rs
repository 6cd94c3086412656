//! Writes a model as a GGUF file with quantised weights.

use std::path::Path;

use crate::error::Result;
use crate::load::ModelFiles;
use crate::load::gguf::{self, FileType, GgufText};
use crate::tokenizer::Tokenizer;

/// Writes the model `files` to the GGUF file `out`, with projections and embeddings quantised as `kind` says. See
/// [`gguf::save`]. Calls `progress` with the bytes read so far and the bytes of the whole model.
///
/// # Errors
/// If the model cannot be loaded, has a part that the format cannot express, or `out` cannot be written.
pub fn quantize(
    files: &ModelFiles,
    kind: impl Into<FileType>,
    out: &Path,
    progress: impl FnMut(usize, usize) + 'static,
) -> Result<()> {
    let config = files.config()?;
    let tokenizer = Tokenizer::of_model(files, &config)?;
    let adds_bos =
        config.bos_token_id.is_some_and(|bos| tokenizer.encode("").is_ok_and(|ids| ids.first() == Some(&bos)));
    let text = GgufText { tokenizer_json: tokenizer.to_json()?, adds_bos };
    gguf::save(files, &text, kind, out, progress)
}
