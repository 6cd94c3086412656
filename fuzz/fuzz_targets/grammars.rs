//! Fuzzes grammars. The first byte chooses the kind, and the rest is the grammar's text.

#![no_main]

use std::sync::{Arc, LazyLock};

use engine::ModelFiles;
use engine::tools::constraint::{Grammar, GrammarCompiler, Reading, Stop, exact_numbers};
use engine::tools::tokenizer::Tokenizer;
use libfuzzer_sys::fuzz_target;

/// The model's end token.
const EOS: u32 = 2;
/// Tokens of an output.
const TOKENS: usize = 24;

static COMPILER: LazyLock<(GrammarCompiler, u32)> = LazyLock::new(|| {
    let files = ModelFiles::bundled();
    let config = files.config().expect("the bundled model has a configuration");
    let tokenizer = Tokenizer::of_model(&files, &config).expect("the bundled model has a tokenizer");
    (GrammarCompiler::new(Arc::new(tokenizer), config.vocab_size, &[EOS]), config.vocab_size as u32)
});

fuzz_target!(|data: &[u8]| {
    let Some((kind, text)) = data.split_first() else { return };
    let Some(grammar) = str::from_utf8(text).ok().and_then(|text| grammar(*kind, text)) else { return };
    let (compiler, vocab_size) = &*COMPILER;
    // A server compiles a heavy grammar in a process with bounds.
    let Ok(prepared) = compiler.prepare(&grammar) else { return };
    if !prepared.is_light() {
        return;
    }
    let Ok(constraint) = compiler.build(&prepared, &Stop::default()) else { return };
    let (mut matcher, mut state) = (constraint.matcher(), data.len() as u64);
    for _ in 0..TOKENS {
        matcher.compute_mask();
        let is_allowed = |token: &u32| matcher.mask()[*token as usize / 32] >> (token % 32) & 1 == 1;
        let allowed: Vec<u32> = (0..*vocab_size).filter(is_allowed).collect();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        let Some(token) = allowed.get((state >> 33) as usize % allowed.len().max(1)) else { return };
        match matcher.read(*token) {
            Reading::Open => {}
            Reading::Complete => return,
            Reading::Refused => panic!("the mask allows the token {token}, which is then refused"),
        }
    }
});

fn grammar(kind: u8, text: &str) -> Option<Grammar> {
    let schema = || serde_json::from_str(&exact_numbers(text)).ok();
    Some(match kind % 5 {
        0 => Grammar::JsonSchema(schema()?),
        1 => Grammar::LenientJsonSchema(schema()?),
        2 => Grammar::Regex(text.into()),
        3 => Grammar::Lark(text.into()),
        _ => Grammar::Choice(text.lines().map(str::to_owned).collect()),
    })
}
