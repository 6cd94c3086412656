//! The bundled model's vocabulary, and random logits instead of a model, for tests of constraints.

#![allow(dead_code)] // not every test uses all of it

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use engine::ModelFiles;
use engine::SchedulerOptions;
use engine::tools::batch::Batch;
use engine::tools::constraint::{Constraint, Grammar, GrammarCompiler};
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::CacheGroup;
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{SampleRow, sample_row};
use engine::tools::sequence::Output;
use engine::tools::tokenizer::Tokenizer;

/// The id of the end-of-sequence token.
pub const EOS: u32 = 2;

/// A vocabulary with its tokenizer and grammar compiler.
pub struct Language {
    pub tokenizer: Arc<Tokenizer>,
    pub vocab_size: usize,
    pub compiler: GrammarCompiler,
}

impl Language {
    /// The bundled model's language.
    pub fn new() -> Self {
        let files = ModelFiles::bundled();
        let config = files.config().unwrap();
        let tokenizer = Arc::new(Tokenizer::of_model(&files, &config).unwrap());
        let compiler = GrammarCompiler::new(tokenizer.clone(), config.vocab_size, &[EOS]);
        Language { tokenizer, vocab_size: config.vocab_size, compiler }
    }

    pub fn compile(&self, grammar: Grammar) -> Constraint {
        self.compiler.compile(&grammar).unwrap()
    }

    pub fn text(&self, output: &Output) -> String {
        self.tokenizer.decode(&output.tokens, true).unwrap()
    }

    /// An engine with `num_blocks` blocks and random logits.
    pub fn engine(&self, num_blocks: usize, scheduler: SchedulerOptions) -> Engine {
        let config = EngineConfig {
            num_blocks,
            block_size: 4,
            swap_blocks: 40,
            groups: vec![CacheGroup::only(None)],
            max_len: 200,
            boundary: None,
            vocab_size: self.vocab_size,
            eos: vec![EOS],
            scheduler,
        };
        Engine::new(config, Box::new(self.noise()))
    }

    /// The runner of such an engine.
    pub fn noise(&self) -> Noise {
        // Make the tokens that end parts of a document likely, to keep documents short.
        let likely =
            |id: u32| "\"}],:0123456789 ".split("").any(|text| text == self.tokenizer.decode(&[id], true).unwrap());
        let bias = (0..self.vocab_size as u32).map(|id| if likely(id) && id != EOS { 7.0 } else { 0.0 }).collect();
        Noise { bias }
    }
}

/// A runner without a model. Its logits are a hash of the context, plus a bias for each token.
pub struct Noise {
    bias: Vec<f32>,
}

impl Noise {
    /// The logits after a prompt and an output.
    pub fn logits(&self, prompt: &[u32], output: &[u32]) -> Vec<f32> {
        let mut hasher = DefaultHasher::new();
        (prompt, output).hash(&mut hasher);
        let mut state = hasher.finish();
        self.bias.iter().map(|bias| bias + noise(&mut state)).collect()
    }
}

impl Runner for Noise {
    fn run(&mut self, _: Batch, rows: &[SampleRow<'_>]) -> engine::Result<Computed> {
        let sample = |row: &SampleRow<'_>| sample_row(&self.logits(row.prompt, row.output), row, &mut Vec::new());
        rows.iter().map(sample).collect()
    }
}

fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1 << 22) as f32
}

/// Runs all requests to their end.
pub fn run(engine: &mut Engine) -> BTreeMap<u64, Vec<Output>> {
    let mut done = BTreeMap::new();
    while engine.has_work() {
        done.extend(engine.step().unwrap().finished.into_iter().map(|f| (f.id, f.outputs)));
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    }
    done
}
