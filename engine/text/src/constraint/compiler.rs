//! Compiles grammars into constraints for one model's vocabulary.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::api::ParserLimits;
use llguidance::{Matcher, ParserFactory};

use super::bounds::{self, Weight};
use super::deadline::within_deadline;
use super::grammar::Grammar;
use super::matcher::{Constraint, LiveConstraint};
use super::parser::{END, LIMITS, factory, marked, parser};
use super::reason::{refused, sentence};
use super::stop::Stop;
use super::trial::Trial;
use crate::tokenizer::{TokenBytes, Tokenizer};
use checkpoint::error::Result;

/// Maximum bytes of a token. The trie is walked with a stack, so longer tokens, such as long runs of spaces, are never
/// allowed.
const MAX_TOKEN_BYTES: usize = 200;
/// A grammar that passed the checks of [`GrammarCompiler::prepare`].
pub struct PreparedGrammar {
    text: String,
    grammar: Grammar,
    weight: Weight,
}

/// Compiles grammars into constraints. The first compilation prepares the vocabulary, which clones share.
#[derive(Clone)]
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos: Arc<[u32]>,
    factory: Arc<OnceLock<Result<ParserFactory, String>>>,
    /// Constraints that requests still use, each with its grammar as text. The key is text because JSON objects compare
    /// equal in any member order, and the order matters to a grammar.
    live: Arc<Mutex<Vec<(String, LiveConstraint)>>>,
    limits: ParserLimits,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Creates a compiler for a model whose token ids are below `vocab_size` and whose sequences end with any token of
    /// `eos`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, eos: &[u32]) -> Self {
        let (factory, live) = Default::default();
        GrammarCompiler { tokenizer, vocab_size, eos: eos.into(), factory, live, limits: LIMITS }
    }

    /// Returns the constraint that makes outputs follow `grammar`. Takes a few milliseconds. The first call takes a few
    /// hundred milliseconds for a vocabulary of 128,000 tokens. Concurrent requests with the same grammar share one
    /// constraint, so they also share its lexer's cached states.
    ///
    /// # Errors
    /// [`Error::Request`](checkpoint::Error::Request) if the grammar is invalid, with the position of the problem. Also
    /// if it is too large, or if the tokenizer does not tell the bytes of its tokens.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        match self.cached(grammar) {
            Some(constraint) => Ok(constraint),
            None => self.build(&self.prepare(grammar)?, &Stop::default()),
        }
    }

    /// Returns the constraint of a running request with this grammar, if there is one.
    pub fn cached(&self, grammar: &Grammar) -> Option<Constraint> {
        self.cached_text(&format!("{grammar:?}"))
    }

    /// As [`GrammarCompiler::cached`], for a checked grammar.
    pub fn cached_prepared(&self, prepared: &PreparedGrammar) -> Option<Constraint> {
        self.cached_text(&prepared.text)
    }

    fn cached_text(&self, text: &str) -> Option<Constraint> {
        let matching = |(other, live): &(String, LiveConstraint)| (other == text).then(|| live.clone());
        let found: Vec<LiveConstraint> = self.live().iter().filter_map(matching).collect();
        // Taking a constraint may also drop it, which takes long. The lock is no longer held.
        found.iter().find_map(LiveConstraint::get)
    }

    /// Checks a grammar against the size limits.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`].
    pub fn prepare(&self, grammar: &Grammar) -> Result<PreparedGrammar> {
        let prepare = || {
            let weight = bounds::check(&grammar.sources()?).map_err(refused)?;
            Ok(PreparedGrammar { text: format!("{grammar:?}"), grammar: grammar.clone(), weight })
        };
        bounds::on_large_stack(prepare).map_err(refused)?
    }

    /// Compiles a checked grammar, unless `stop` is set first.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`].
    pub fn build(&self, prepared: &PreparedGrammar, stop: &Stop) -> Result<Constraint> {
        let build = || self.build_here(&prepared.grammar, stop);
        let constraint = bounds::on_large_stack(build).map_err(refused)??;
        let mut live = self.live();
        live.retain(|(_, live)| live.is_used());
        live.push((prepared.text.clone(), constraint.live()));
        Ok(constraint)
    }

    fn build_here(&self, grammar: &Grammar, stop: &Stop) -> Result<Constraint> {
        stop.check()?;
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(|why| refused(why.clone()))?;
        let (parser, unchecked) = parser(factory, grammar, stop)?;
        stop.check()?;
        let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
        stop.watch(matcher.cancellation_handle());
        // Finds out here, before the request runs, that a grammar allows no output at all.
        let mask = within_deadline(matcher.cancellation_handle(), || matcher.compute_mask_or_eos());
        stop.watch(None);
        stop.check()?;
        mask.map_err(|error| refused(sentence(&error.to_string())))?;
        Ok(Constraint::new(matcher, self.vocab_size, self.eos.clone(), unchecked))
    }

    /// Returns the standard input for a [trial](super::trial) of this grammar. The trial may use `memory` bytes and
    /// `seconds` of CPU time.
    ///
    /// # Errors
    /// [`Error::Request`](checkpoint::Error::Request) if the tokenizer does not tell the bytes of its tokens.
    pub fn trial(&self, prepared: &PreparedGrammar, memory: u64, seconds: u64) -> Result<Vec<u8>> {
        let special = (0..).zip(self.tokens().map_err(refused)?).filter_map(|(id, token)| match token {
            TokenBytes::Special(name) if !self.eos.contains(&id) => Some((id as usize, name)),
            _ => None,
        });
        let (grammar, special) = (prepared.grammar.clone(), special.collect());
        let trial = Trial { grammar, vocab_size: self.vocab_size, special, memory, seconds };
        let written = bounds::on_large_stack(|| serde_json::to_vec(&trial)).map_err(refused)?;
        written.map_err(|error| refused(error.to_string()))
    }

    fn live(&self) -> MutexGuard<'_, Vec<(String, LiveConstraint)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> Result<Vec<TokenBytes>, String> {
        self.tokenizer.token_bytes(self.vocab_size).ok_or_else(|| {
            "this model's tokenizer does not say which bytes its tokens stand for, so outputs cannot be constrained"
                .into()
        })
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let word = |(id, token): (u32, TokenBytes)| match token {
            // All of the model's end tokens are represented by one extra token after the vocabulary.
            _ if self.eos.contains(&id) => Vec::new(),
            TokenBytes::Special(name) => marked(&name),
            TokenBytes::Text(bytes) if bytes.len() <= MAX_TOKEN_BYTES => bytes,
            TokenBytes::Text(_) | TokenBytes::Nothing => Vec::new(),
        };
        let mut words: Vec<Vec<u8>> = (0..).zip(self.tokens()?).map(word).collect();
        words.push(marked(END));
        factory(words, self.vocab_size, &self.limits)
    }
}

impl PreparedGrammar {
    /// Whether the grammar compiles in a few milliseconds. The cost of other grammars is unknown before they compile.
    pub fn is_light(&self) -> bool {
        self.weight == Weight::Light
    }
}

impl fmt::Debug for PreparedGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedGrammar").field("weight", &self.weight).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Reading;
    use super::super::grammar::{DocumentRule, Documents};
    use super::*;
    use checkpoint::load::ModelFiles;

    fn compiler(limits: ParserLimits) -> GrammarCompiler {
        let files = ModelFiles::bundled();
        let config = files.config().unwrap();
        let tokenizer = Arc::new(Tokenizer::of_model(&files, &config).unwrap());
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
        assert_eq!(compiler.live().len(), 1, "unused constraints are removed");
    }

    #[test]
    fn a_prepared_grammar_shares_the_constraint_of_a_running_request() {
        let compiler = compiler(LIMITS);
        let prepared = compiler.prepare(&Grammar::Regex("[a-c]+".into())).unwrap();
        assert!(compiler.cached_prepared(&prepared).is_none());
        let running = compiler.build(&prepared, &Stop::default()).unwrap();
        assert!(compiler.cached_prepared(&prepared).is_some_and(|cached| cached == running));
        drop(running);
        assert!(compiler.cached_prepared(&prepared).is_none());
    }

    #[test]
    fn unchecked_conditions_are_kept() {
        let compiler = compiler(LIMITS);
        let schema = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true});
        let lenient = compiler.compile(&Grammar::LenientJsonSchema(schema.clone())).unwrap();
        let [place] = lenient.unchecked() else { panic!("{:?}", lenient.unchecked()) };
        assert!(place.starts_with("#/uniqueItems: "), "{place}");
        assert!(compiler.compile(&Grammar::JsonSchema(schema)).is_err());
    }

    #[test]
    fn refusals_of_document_rules_name_their_origin() {
        let compiler = compiler(LIMITS);
        let documents = |schema: Value| {
            let rule = DocumentRule { name: "document".into(), origin: "the tool: ".into(), schema, strict: true };
            let documents = Documents { lark: "start: document".into(), rules: vec![rule] };
            compiler.compile(&Grammar::Documents(documents))
        };
        let nested = |count: usize| {
            (0..count).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}))
        };
        assert!(documents(nested(126)).is_ok());
        let why = documents(nested(127)).unwrap_err().to_string();
        assert!(why.contains("the tool: #: the schema nests deeper"), "{why}");
        let why = documents(json!({"items": {"multipleOf": 1e-9}})).unwrap_err().to_string();
        assert!(why.contains("the tool: #/items: multipleOf"), "{why}");
    }

    #[test]
    fn a_stopped_compilation_ends_early() {
        let compiler = compiler(LIMITS);
        let stop = Stop::default();
        let factory = compiler.factory().unwrap();
        let grammar = Grammar::JsonSchema(json!({"type": "boolean"}));
        assert!(parser(&factory, &grammar, &stop).is_ok());
        stop.set();
        assert!(parser(&factory, &grammar, &stop).is_err_and(|error| error.to_string().contains("stopped")));
    }

    #[test]
    fn a_matcher_continues_alone_after_the_shared_lexer_fails() {
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
            alone += usize::from(matcher.has_own_lexer());
            assert!(matcher.may_end());
        }
        assert!((1..16).contains(&alone), "{alone} matchers have a lexer of their own");
        assert!(tight != compiler.compile(&grammar).unwrap(), "a failed lexer is not shared with new requests");
    }
}
