//! From grammars to constraints, for one model's vocabulary.

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::grammar::{Grammar, refused};
use super::matcher::Constraint;
use crate::error::Result;
use crate::tokenizer::{TokenBytes, Tokenizer};

/// Bytes of a token, at most: the trie is walked with a stack. Longer ones, which are runs of spaces and the like, are not
/// chosen.
const MAX_TOKEN_BYTES: usize = 200;
/// Bounds on the work of compiling (some 20 ms, by the library's figures), of a mask (some 15 ms), and on memory (some 2 KB
/// a state of the lexer).
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 20_000,
    max_grammar_size: 500_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};
/// Characters of the library's reasons that a message repeats.
const MAX_REASON: usize = 600;

/// Makes constraints of grammars. What that takes of the vocabulary is made for the first of them; clones share it.
#[derive(Clone)]
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos: Arc<[u32]>,
    factory: Arc<OnceLock<Result<ParserFactory, String>>>,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// A compiler for a model whose token ids are below `vocab_size`, and whose sequences end with any of `eos`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, eos: &[u32]) -> Self {
        GrammarCompiler { tokenizer, vocab_size, eos: eos.into(), factory: Arc::default() }
    }

    /// The constraint that an output is of `grammar`. Takes some milliseconds; the first call for a vocabulary of 128,000
    /// tokens some hundred.
    ///
    /// # Errors
    /// [`Error::Request`](crate::Error::Request) with the place of what is wrong with the grammar, or says that it is too
    /// large, or that this tokenizer's tokens have no bytes of their own.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        let compiled = grammar.compile()?;
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(|why| refused(why.clone()))?;
        let parser = factory.create_parser(compiled).map_err(|error| refused(sentence(&format!("{error:#}"))))?;
        let mut matcher = Matcher::new(Ok(parser));
        // What has no sentence at all is found here, and not when a request runs.
        match matcher.compute_mask_or_eos() {
            Ok(_) => Ok(Constraint::new(matcher, self.vocab_size, self.eos.clone())),
            Err(error) => Err(refused(sentence(&error.to_string()))),
        }
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let tokens = self.tokenizer.token_bytes(self.vocab_size).ok_or(
            "this model's tokenizer does not say which bytes its tokens stand for, so that outputs cannot be constrained",
        )?;
        let marked = |name: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        let word = |(id, token): (u32, TokenBytes)| match token {
            // The model's own tokens for an end are all represented by one more, behind the vocabulary.
            _ if self.eos.contains(&id) => Vec::new(),
            TokenBytes::Special(name) => marked(&name),
            TokenBytes::Text(bytes) if bytes.len() <= MAX_TOKEN_BYTES => bytes,
            TokenBytes::Text(_) | TokenBytes::Nothing => Vec::new(),
        };
        let mut words: Vec<Vec<u8>> = (0..).zip(tokens).map(word).collect();
        words.push(marked("<|end of the output|>"));
        let size = u32::try_from(words.len()).map_err(|error| error.to_string())?;
        let trie = TokTrie::from(&TokRxInfo::new(size, size - 1), &words);
        // Not canonical: where the grammar leaves one text, the model chooses among the tokens that spell it.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
        *factory.quiet().limits_mut() = LIMITS;
        Ok(factory)
    }
}

/// The library's reason as one sentence: its lines joined, as long as a message may be.
fn sentence(reason: &str) -> String {
    let lines: Vec<&str> =
        reason.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "<non-verbose/>").collect();
    let joined = lines.join("; ");
    match joined.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}...", &joined[..end]),
        None => joined,
    }
}
