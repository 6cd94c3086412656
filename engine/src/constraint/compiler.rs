//! From grammars to constraints, for one model's vocabulary.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::grammar::{Grammar, refused};
use super::matcher::{Constraint, LiveConstraint};
use super::reason::sentence;
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

/// Makes constraints of grammars. What that takes of the vocabulary is made for the first of them; clones share it.
#[derive(Clone)]
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos: Arc<[u32]>,
    factory: Arc<OnceLock<Result<ParserFactory, String>>>,
    /// The constraints that requests have, each with its grammar as a text: two objects whose members are in another order are
    /// equal, and two grammars.
    live: Arc<Mutex<Vec<(String, LiveConstraint)>>>,
    limits: ParserLimits,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// A compiler for a model whose token ids are below `vocab_size`, and whose sequences end with any of `eos`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, eos: &[u32]) -> Self {
        let (factory, live) = Default::default();
        GrammarCompiler { tokenizer, vocab_size, eos: eos.into(), factory, live, limits: LIMITS }
    }

    /// The constraint that an output is of `grammar`. Takes some milliseconds; the first call for a vocabulary of 128,000
    /// tokens some hundred. Requests that have the same grammar at the same time get the same constraint, so that what is found
    /// out for one helps all.
    ///
    /// # Errors
    /// [`Error::Request`](crate::Error::Request) with the place of what is wrong with the grammar, or says that it is too
    /// large, or that this tokenizer's tokens have no bytes of their own.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        let text = format!("{grammar:?}");
        let known = self.live().iter().find_map(|(other, live)| (*other == text).then(|| live.get()).flatten());
        if let Some(constraint) = known {
            return Ok(constraint);
        }
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(|why| refused(why.clone()))?;
        let compiled = grammar.compile(factory)?;
        let parser = factory
            .create_parser_from_init_default(compiled)
            .map_err(|error| refused(sentence(&format!("{error:#}"))))?;
        let mut matcher = Matcher::new(Ok(parser));
        // What has no sentence at all is found here, and not when a request runs.
        matcher.compute_mask_or_eos().map_err(|error| refused(sentence(&error.to_string())))?;
        let constraint = Constraint::new(matcher, self.vocab_size, self.eos.clone());
        let mut live = self.live();
        live.retain(|(_, live)| live.is_there());
        live.push((text, constraint.live()));
        Ok(constraint)
    }

    fn live(&self) -> MutexGuard<'_, Vec<(String, LiveConstraint)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
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
        *factory.quiet().limits_mut() = self.limits.clone();
        Ok(factory)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Reading;
    use super::*;
    use crate::load::ModelFiles;

    fn compiler(limits: ParserLimits) -> GrammarCompiler {
        let files = ModelFiles::bundled();
        let config = files.config().unwrap();
        let tokenizer = Arc::new(files.tokenizer(&config).unwrap());
        GrammarCompiler { limits, ..GrammarCompiler::new(tokenizer, config.vocab_size, &[2]) }
    }

    #[test]
    fn requests_of_one_grammar_share_a_constraint() {
        let compiler = compiler(LIMITS);
        let compile = |names: [&str; 2]| {
            let members = names.map(|name| (name.to_owned(), json!({"type": "boolean"})));
            let members: serde_json::Map<_, _> = members.into_iter().collect();
            compiler.compile(&Grammar::JsonSchema(json!({"type": "object", "properties": members}))).unwrap()
        };
        let first = compile(["a", "b"]);
        assert!(first == compile(["a", "b"]) && first != compile(["a", "c"]));
        drop(first);
        compile(["c", "d"]);
        assert_eq!(compiler.live().len(), 1, "what no request has is forgotten");
    }

    #[test]
    fn a_matcher_goes_on_by_itself_where_the_lexer_of_all_fails() {
        let words: Vec<String> = ('a'..='p').map(|letter| format!("{letter}[0-9]{{60}}{letter}")).collect();
        let grammar = Grammar::Regex(words.join("|"));
        let roomy = compiler(LIMITS).compile(&grammar).unwrap();
        let compiler = compiler(ParserLimits { max_lexer_states: 400, ..LIMITS });
        let tight = compiler.compile(&grammar).unwrap();
        let id = |text: String| compiler.tokenizer.token_id(&text).unwrap();
        let mut alone = 0;
        for letter in 'a'..='p' {
            let (mut matcher, mut other) = (tight.matcher(), roomy.matcher());
            let ends = [id(letter.into())];
            for token in [&ends[..], &[id("7".into()); 60], &ends].concat() {
                matcher.compute_mask();
                other.compute_mask();
                assert_eq!(matcher.mask(), other.mask());
                assert_ne!(matcher.read(token), Reading::Refused);
                other.read(token);
                matcher = matcher.clone();
            }
            alone += usize::from(matcher.is_alone());
            assert!(matcher.may_end());
        }
        assert!((1..16).contains(&alone), "{alone} matchers have a lexer of their own");
        assert!(tight != compiler.compile(&grammar).unwrap(), "a lexer that has failed is not for others");
    }
}
