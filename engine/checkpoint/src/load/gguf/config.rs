//! Converts a GGUF file's metadata to the `config.json` and `generation_config.json` of a Hugging Face model.

use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use super::names::Architecture;
use crate::error::{Error, Result};

/// Information that comes from the tensors, not from the metadata.
pub(super) struct Shapes<'a> {
    /// Returns the extents of a tensor, given its name in the file.
    pub shape: &'a dyn Fn(&str) -> Option<Vec<usize>>,
    /// Reads a list of divisors of the rotation's frequencies, given its name in the file.
    pub factors: &'a dyn Fn(&str) -> Result<Option<Vec<f32>>>,
}

impl Shapes<'_> {
    pub fn has(&self, name: &str) -> bool {
        (self.shape)(name).is_some()
    }
}

/// Returns the architecture that a file names.
pub(super) fn architecture(metadata: &Metadata) -> Result<Architecture> {
    let name = metadata.text("general.architecture")?;
    let name = name.ok_or_else(|| Error::Config("the file's metadata has no general.architecture".into()))?;
    Architecture::ALL.into_iter().find(|architecture| architecture.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        let known = Architecture::ALL.map(Architecture::name).join(", ");
        Error::Unsupported(format!("GGUF files of the architecture {shown:?} are not supported; {known} are"))
    })
}

/// Builds the `config.json`.
pub(super) fn config(metadata: &Metadata, shapes: &Shapes<'_>) -> Result<Value> {
    let architecture = architecture(metadata)?;
    let mut reader = Reader { metadata, prefix: architecture.name(), json: Map::new() };
    reader.common(shapes)?;
    if !architecture.may_have_experts() && reader.expert_count()?.is_some() {
        let name = architecture.name();
        return Err(Error::Unsupported(format!(
            "experts in GGUF files of the architecture {name} are not implemented"
        )));
    }
    match architecture {
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => reader.llama(architecture, shapes)?,
        Architecture::Gemma2 => reader.gemma2()?,
        Architecture::Gemma3 => reader.gemma3()?,
        Architecture::Gemma4 => reader.gemma4(shapes)?,
        Architecture::Olmo2 => reader.olmo2(shapes)?,
        Architecture::Cohere2 => reader.cohere2(shapes)?,
        Architecture::SmolLm3 => reader.smollm3(shapes)?,
        Architecture::Phi3 => reader.phi3(shapes)?,
        Architecture::Glm4 => reader.glm4(shapes)?,
        Architecture::Lfm2 => reader.lfm2(shapes)?,
        Architecture::Granite => reader.granite(shapes)?,
        Architecture::GraniteMoe => reader.granite_moe(shapes)?,
        Architecture::GraniteHybrid => reader.granite_hybrid(shapes)?,
        Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => {
            reader.qwen_next(architecture, shapes)?;
        }
        Architecture::Qwen2Moe => reader.qwen2_moe(shapes)?,
        Architecture::Qwen3Moe => reader.qwen3_moe(shapes)?,
        Architecture::GptOss => reader.gpt_oss()?,
        Architecture::DeepSeek2 => reader.deepseek2(shapes)?,
        Architecture::Gpt2 => reader.gpt2()?,
        Architecture::Opt => reader.opt(shapes)?,
    }
    Ok(Value::Object(reader.json))
}

/// Returns the tokens that end a text, including those that end a turn.
fn ends(metadata: &Metadata) -> Result<Vec<u64>> {
    let mut ends = Vec::new();
    for name in ["eos", "eot", "eom"] {
        if let Some(id) = metadata.integer(&format!("tokenizer.ggml.{name}_token_id"))?
            && !ends.contains(&id)
        {
            ends.push(id);
        }
    }
    if metadata.text("general.architecture")? == Some("gpt-oss") {
        // Files do not name all tokens that end a turn. `<|end|>` only ends a message.
        let texts = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let id = |text: &str| texts.iter().position(|own| own == text).map(|id| id as u64);
        ends.retain(|end| Some(*end) != id("<|end|>"));
        for end in ["<|return|>", "<|call|>"].into_iter().filter_map(id) {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
    }
    Ok(ends)
}

/// Builds the `generation_config.json`.
pub(super) fn generation(metadata: &Metadata) -> Result<Value> {
    let mut json = Map::new();
    json.insert("eos_token_id".into(), json!(ends(metadata)?));
    for (name, key) in [("temperature", "temp"), ("top_p", "top_p"), ("min_p", "min_p")] {
        if let Some(number) = metadata.float(&format!("general.sampling.{key}"))? {
            json.insert(name.into(), json!(number as f32));
        }
    }
    if let Some(count) = metadata.integer("general.sampling.top_k")? {
        json.insert("top_k".into(), json!(count));
    }
    if let Some(number) = metadata.float("general.sampling.penalty_repeat")? {
        json.insert("repetition_penalty".into(), json!(number as f32));
    }
    if json.contains_key("temperature") {
        json.insert("do_sample".into(), json!(true));
    }
    Ok(Value::Object(json))
}

/// The `config.json` under construction.
pub(super) struct Reader<'a> {
    pub metadata: &'a Metadata,
    prefix: &'static str,
    json: Map<String, Value>,
}

impl Reader<'_> {
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub fn missing(&self, key: &str) -> Error {
        Error::Config(format!("the file's metadata has no {}", self.name(key)))
    }

    pub fn integer(&self, key: &str) -> Result<Option<u64>> {
        self.metadata.integer_of_layers(&self.name(key))
    }

    pub fn put(&mut self, field: &str, value: impl Into<Value>) {
        self.json.insert(field.into(), value.into());
    }

    /// Copies the number at `key`, which must exist, to the member `field`.
    pub fn copy(&mut self, field: &str, key: &str) -> Result<u64> {
        let value = self.integer(key)?.ok_or_else(|| self.missing(key))?;
        self.put(field, value);
        Ok(value)
    }

    fn common(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let embedding = (shapes.shape)("token_embd.weight");
        let Some([rows, _]) = embedding.as_deref() else {
            return Err(Error::Config("the file has no matrix token_embd.weight".into()));
        };
        self.put("vocab_size", *rows);
        self.put("tie_word_embeddings", !shapes.has("output.weight"));
        self.put("bos_token_id", self.metadata.integer("tokenizer.ggml.bos_token_id")?);
        self.put("eos_token_id", ends(self.metadata)?);
        Ok(())
    }

    fn llama(&mut self, architecture: Architecture, shapes: &Shapes<'_>) -> Result<()> {
        let window = self.integer("attention.sliding_window")?;
        let has_experts = self.expert_count()?.is_some();
        let class = match architecture {
            _ if has_experts => "MixtralForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
            _ if window.is_some() => "MistralForCausalLM",
            _ => "LlamaForCausalLM",
        };
        self.put("architectures", json!([class]));
        if window.is_some() {
            if architecture != Architecture::Llama {
                return Err(Error::Unsupported(format!("{} is not supported", self.name("attention.sliding_window"))));
            }
            self.put("sliding_window", window);
        }
        let head_dim = self.shape()?;
        self.layer_sizes()?;
        if has_experts {
            self.mixtral()?;
        }
        self.sole_head_dim(head_dim)?;
        self.rms_norm()?;
        self.put("rope_theta", self.metadata.float(&self.name("rope.freq_base"))?.unwrap_or(10000.0));
        let [query, out, up] =
            ["attn_q", "attn_output", "ffn_up"].map(|part| shapes.has(&format!("blk.0.{part}.bias")));
        if architecture == Architecture::Llama && query != out {
            return Err(Error::Unsupported("biases on only some of the attention projections".into()));
        }
        self.put("attention_bias", query && out);
        self.put("mlp_bias", up);
        self.rope(shapes)
    }

    /// Copies the sizes of a decoder, and returns the size of its heads.
    pub fn shape(&mut self) -> Result<u64> {
        let hidden = self.copy("hidden_size", "embedding_length")?;
        self.copy("num_hidden_layers", "block_count")?;
        self.copy("max_position_embeddings", "context_length")?;
        let heads = self.copy("num_attention_heads", "attention.head_count")?;
        let head_dim = match self.integer("attention.key_length")? {
            Some(size) => size,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        self.put("head_dim", head_dim);
        Ok(head_dim)
    }

    /// Copies the sizes that are equal in all layers of most models.
    pub fn layer_sizes(&mut self) -> Result<()> {
        self.copy("intermediate_size", "feed_forward_length")?;
        let heads = self.copy("num_attention_heads", "attention.head_count")?;
        let kv_heads = self.integer("attention.head_count_kv")?.unwrap_or(heads);
        self.put("num_key_value_heads", kv_heads);
        Ok(())
    }

    /// Copies the epsilon of RMS norms.
    pub fn rms_norm(&mut self) -> Result<()> {
        let eps = self.float("attention.layer_norm_rms_epsilon")?;
        self.put("rms_norm_eps", eps);
        Ok(())
    }

    /// Returns the number at `key`, which must exist.
    pub fn float(&self, key: &str) -> Result<f64> {
        self.metadata.float(&self.name(key))?.ok_or_else(|| self.missing(key))
    }

    /// Checks that values and rotations have the size of keys.
    pub fn sole_head_dim(&self, head_dim: u64) -> Result<()> {
        for key in ["attention.value_length", "rope.dimension_count"] {
            if let Some(other) = self.integer(key)?.filter(|other| *other != head_dim) {
                let name = self.name(key);
                return Err(Error::Unsupported(format!("{name} is {other}, and heads have {head_dim} elements")));
            }
        }
        Ok(())
    }

    /// Copies the scaling of the rotation's frequencies.
    pub fn rope(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        let factor = self.metadata.float(&self.name("rope.scaling.factor"))?;
        let kind = self.metadata.text(&self.name("rope.scaling.type"))?;
        match (kind, &(shapes.factors)("rope_freqs.weight")?) {
            (None | Some("none"), None) => {}
            (None | Some("none"), Some(factors)) => {
                self.put("rope_scaling", json!({"rope_type": "factors", "factors": factors}));
            }
            (Some("linear"), None) => {
                self.put("rope_scaling", json!({"rope_type": "linear", "factor": factor}));
            }
            (Some(other), _) => {
                let shown: String = other.chars().take(40).collect();
                return Err(Error::Unsupported(format!("rope scaling of type {shown:?} in a GGUF file")));
            }
        }
        Ok(())
    }

    fn gpt2(&mut self) -> Result<()> {
        self.put("architectures", json!(["GPT2LMHeadModel"]));
        self.copy("n_embd", "embedding_length")?;
        self.copy("n_inner", "feed_forward_length")?;
        self.copy("n_layer", "block_count")?;
        self.copy("n_positions", "context_length")?;
        self.copy("n_head", "attention.head_count")?;
        let key = "attention.layer_norm_epsilon";
        let eps = self.metadata.float(&self.name(key))?.ok_or_else(|| self.missing(key))?;
        self.put("layer_norm_epsilon", eps);
        Ok(())
    }

    fn opt(&mut self, shapes: &Shapes<'_>) -> Result<()> {
        self.put("architectures", json!(["OPTForCausalLM"]));
        self.copy("hidden_size", "embedding_length")?;
        self.copy("ffn_dim", "feed_forward_length")?;
        self.copy("num_hidden_layers", "block_count")?;
        self.copy("max_position_embeddings", "context_length")?;
        self.copy("num_attention_heads", "attention.head_count")?;
        self.copy("word_embed_proj_dim", "word_embedding_length")?;
        let norm_first = self.metadata.bool(&self.name("norm_first"))?.unwrap_or(true);
        self.put("do_layer_norm_before", norm_first);
        self.put("_remove_final_layer_norm", norm_first && !shapes.has("output_norm.weight"));
        self.put("enable_bias", shapes.has("blk.0.attn_q.bias"));
        self.put("layer_norm_elementwise_affine", shapes.has("blk.0.attn_norm.weight"));
        let activation = self.metadata.text(&self.name("activation_function"))?.unwrap_or("relu");
        self.put("activation_function", activation);
        Ok(())
    }
}
