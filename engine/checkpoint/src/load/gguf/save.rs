//! Writing a model to a GGUF file with quantised weights.

use std::io::BufWriter;
use std::path::Path;

use super::draft::Draft;
use super::entries;
use super::file_type::FileType;
use super::names::Architecture;
use super::sources::sources;
use super::writer::{self, Entries, Stored, Tensor};
use crate::error::{Error, Result};
use crate::load::ModelFiles;
use crate::tensor::DType;

/// A model's tokenizer for a GGUF file. [`save`] gets it from the caller because this crate does not load tokenizers.
#[derive(Clone, Debug)]
pub struct GgufText {
    /// The text of the `tokenizer.json`.
    pub tokenizer_json: String,
    /// Whether the tokenizer adds the BOS token to every text.
    pub adds_bos: bool,
}

/// Writes a model to the file `out`: its configuration, tokenizer, chat template and weights.
///
/// The matrices of projections and embeddings are rounded as `kind` says. Tables of positions, and matrices whose rows
/// are not a multiple of a group size, keep their type, and so do experts in MXFP4. Vectors and routers become f32.
/// `progress` is called with the bytes read so far and the total.
///
/// # Errors
/// If the model cannot be loaded, the format cannot represent it, or the file cannot be written. An existing file `out` is
/// then unchanged.
pub fn save(
    files: &ModelFiles,
    text: &GgufText,
    kind: impl Into<FileType>,
    out: &Path,
    progress: impl FnMut(usize, usize) + 'static,
) -> Result<()> {
    let (kind, config) = (kind.into(), files.config()?);
    let architecture = Architecture::of_model(&config);
    let mut weights = files.weights(None)?;
    weights.strip_prefix(config.family.weight_prefixes());
    weights.on_progress(progress);

    let mut written = Entries::default();
    written.text("general.architecture", architecture.name());
    written.text("general.name", files.name());
    written.u32("general.quantization_version", 2);
    written.u32("general.file_type", kind.number());
    entries::config(&mut written, architecture, &config)?;
    entries::generation(&mut written, &config, &files.generation_config()?);
    entries::tokenizer(&mut written, &text.tokenizer_json, config.vocab_size, text.adds_bos)?;
    if let Some(template) = files.chat_template()? {
        written.text("tokenizer.chat_template", &template);
    }

    let sources = sources(architecture, &config, kind, &weights)?;
    let factors = entries::rope_factors(&config);
    let mut tensors: Vec<Tensor> = Vec::new();
    tensors.extend(factors.iter().map(|(name, list)| {
        let shape = vec![list.len()];
        Tensor { name: (*name).to_owned(), shape, stored: Stored::Float(DType::F32) }
    }));
    tensors.extend(sources.iter().flat_map(|source| source.tensors.clone()));

    let unwritten = |error| Error::Write { path: out.to_path_buf(), source: error };
    let file = BufWriter::new(Draft::create(out).map_err(unwritten)?);
    let mut body = writer::header(file, &written, &tensors).map_err(unwritten)?;
    for (_, list) in factors {
        body.tensor(bytemuck::cast_slice(&list)).map_err(unwritten)?;
    }
    for source in sources {
        source.data(&mut weights, |data| body.tensor(data).map_err(unwritten))?;
    }
    let draft = body.finish().and_then(|file| Ok(file.into_inner()?)).map_err(unwritten)?;
    draft.keep().map_err(unwritten)
}
