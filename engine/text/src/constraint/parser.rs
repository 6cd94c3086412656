//! Parsers of grammars over a vocabulary.

use std::sync::Arc;

use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use super::grammar::Grammar;
use super::reason::{refused, sentence};
use super::stop::Stop;
use checkpoint::error::Result;

/// Limits on compilation (about 20 ms by the library's figures), on one mask (about 15 ms), and on memory (about 2 KB
/// per lexer state). Large lexemes are not precomputed, because precomputation cannot be interrupted and mask
/// computation can.
pub(super) const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 20_000,
    max_grammar_size: 500_000,
    precompute_large_lexemes: false,
    verbose_errors: false,
};

/// Name of the end-of-output token, which is added after the vocabulary.
pub(super) const END: &str = "<|end of the output|>";

/// Compiles `grammar` into a parser. Also returns the conditions that outputs are not checked for.
///
/// # Errors
/// [`Error::Request`](checkpoint::Error::Request) with the position of the problem.
pub(super) fn parser(factory: &ParserFactory, grammar: &Grammar, stop: &Stop) -> Result<(TokenParser, Vec<String>)> {
    let (compiled, unchecked) = grammar.compile(factory, stop)?;
    let parser = factory.create_parser_from_init_default(compiled);
    Ok((parser.map_err(|error| refused(sentence(&format!("{error:#}"))))?, unchecked))
}

/// Returns the bytes that represent a special token in the library's vocabulary.
pub(super) fn marked(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}

/// Creates a parser factory for the vocabulary `words`. The token `end` ends an output.
pub(super) fn factory(words: Vec<Vec<u8>>, end: usize, limits: &ParserLimits) -> Result<ParserFactory, String> {
    let size = |size: usize| u32::try_from(size).map_err(|error| error.to_string());
    let trie = TokTrie::from(&TokRxInfo::new(size(words.len())?, size(end)?), &words);
    // Tokenization is not forced to be canonical. Where the grammar leaves one text, the model chooses the tokens that
    // spell it.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
    *factory.quiet().limits_mut() = limits.clone();
    Ok(factory)
}
