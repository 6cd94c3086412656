//! The masks of one decode step of constrained sequences. Items are sequences. The benchmark `constrained_steps`
//! measures whole steps.
//!
//!     cargo bench -p engine --bench masks
//!
//! The vocabulary of 128,000 tokens is synthetic. It contains words of syllables with and without a leading space,
//! numbers of up to three digits, and runs of punctuation, in the proportions of Llama 3's vocabulary.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use engine::ModelFiles;
use engine::tools::constraint::{Constraint, Grammar, GrammarCompiler, Matcher, Reading, compute_masks};
use engine::tools::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Tokens in the synthetic vocabulary.
const LARGE: usize = 128_000;
/// Sequences per step.
const SEQUENCES: usize = 32;
/// Tokens per sequence, from random documents. A step's masks are in the middle of these.
const STEPS: usize = 200;
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden/llama3");

fn main() {
    divan::main();
}

#[divan::bench(sample_count = STEPS as u32, sample_size = 1)]
fn bundled(bencher: Bencher<'_, '_>) {
    let files = ModelFiles::bundled();
    steps(bencher, &files, 2);
}

#[divan::bench(sample_count = STEPS as u32, sample_size = 1)]
fn of_128000_tokens(bencher: Bencher<'_, '_>) {
    let folder = expect_ok(tempfile::tempdir());
    expect_ok(write_model(folder.path()));
    steps(bencher, &expect_ok(ModelFiles::directory(folder.path())), 635);
}

/// Measures all masks of a step. Between two steps each sequence reads a token that its mask allows. That is not part
/// of the measurement.
fn steps(bencher: Bencher<'_, '_>, files: &ModelFiles, eos: u32) {
    let config = expect_ok(files.config());
    let tokenizer: Arc<Tokenizer> = Arc::new(expect_ok(Tokenizer::of_model(files, &config)));
    let compiler = GrammarCompiler::new(tokenizer, config.vocab_size, &[eos]);
    let constraint = expect_ok(compiler.compile(&Grammar::JsonSchema(schema())));
    let mut state = 1;
    let matchers: RefCell<Vec<Matcher>> = RefCell::new((0..SEQUENCES).map(|_| constraint.matcher()).collect());
    compute_masks(matchers.borrow_mut().iter_mut().collect());
    let read = || matchers.borrow_mut().iter_mut().for_each(|matcher| follow(matcher, &constraint, &mut state));
    let masks = |()| compute_masks(matchers.borrow_mut().iter_mut().collect());
    bencher.counter(ItemsCount::new(SEQUENCES)).with_inputs(read).bench_local_values(masks);
}

/// Reads a random allowed token. If the document is complete, begins a new one.
fn follow(matcher: &mut Matcher, constraint: &Constraint, state: &mut u64) {
    let allowed: u32 = matcher.mask().iter().map(|word| word.count_ones()).sum();
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut wanted = ((*state >> 33) as u32) % allowed.max(1);
    let found = matcher.mask().iter().enumerate().find_map(|(at, &word)| {
        let ones = word.count_ones();
        if wanted >= ones {
            wanted -= ones;
            return None;
        }
        (0..32).filter(|bit| word >> bit & 1 == 1).nth(wanted as usize).map(|bit| at as u32 * 32 + bit)
    });
    if found.is_none_or(|token| matcher.read(token) != Reading::Open) {
        *matcher = constraint.matcher();
    }
}

/// Returns a schema that consists mainly of text, like typical documents.
fn schema() -> Value {
    let text = json!({"type": "string", "maxLength": 400});
    json!({
        "type": "object",
        "properties": {"title": text, "pages": {"type": "integer"}, "kind": {"enum": ["novel", "story"]},
                       "chapters": {"type": "array", "items": {"type": "object", "properties": {"text": text, "long": {"type": "boolean"}},
                                                               "required": ["text", "long"], "additionalProperties": false}}},
        "required": ["title", "pages", "kind", "chapters"],
        "additionalProperties": false,
    })
}

/// Writes a model's configuration and tokenizer with [`LARGE`] tokens.
fn write_model(folder: &Path) -> std::io::Result<()> {
    let read = |name: &str| -> std::io::Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(Path::new(GOLDEN).join(name))?)?)
    };
    let (mut config, mut tokenizer) = (read("config.json")?, read("tokenizer.json")?);
    config["vocab_size"] = LARGE.into();
    let special: Vec<u64> =
        tokenizer["added_tokens"].as_array().into_iter().flatten().filter_map(|token| token["id"].as_u64()).collect();
    let bytes: Vec<String> = vocabulary(&tokenizer["model"]["vocab"])
        .into_iter()
        .filter(|(_, id)| *id < 256)
        .map(|(word, _)| word)
        .collect();
    let mut words = bytes.into_iter().chain(synthetic_words());
    let vocab: serde_json::Map<String, Value> =
        (0..LARGE as u64).filter(|id| !special.contains(id)).map_while(|id| Some((words.next()?, id.into()))).collect();
    tokenizer["model"]["vocab"] = vocab.into();
    tokenizer["model"]["merges"] = json!([]);
    std::fs::write(folder.join("config.json"), config.to_string())?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string())
}

fn vocabulary(vocab: &Value) -> Vec<(String, u64)> {
    let entries = vocab.as_object().into_iter().flatten();
    entries.filter_map(|(word, id)| Some((word.clone(), id.as_u64()?))).collect()
}

/// Generates distinct synthetic words. `Ġ` represents a space.
fn synthetic_words() -> impl Iterator<Item = String> {
    const SYLLABLES: [&str; 40] = [
        "ba", "con", "der", "est", "fi", "gra", "hel", "ing", "jo", "ka", "lo", "men", "no", "or", "pre", "qu", "re",
        "sta", "tion", "un", "ve", "wa", "xi", "yo", "za", "ch", "sh", "th", "ed", "er", "al", "ic", "ous", "ly",
        "ness", "ment", "able", "ful", "ist", "ism",
    ];
    const MARKS: [&str; 24] = [
        "\"", "\",", "\":", "{", "}", "[", "]", "}}", "]}", "()", ");", "//", "==", "->", "...", "--", "Ċ", "ĊĊ", "ĠĠ",
        "ĠĠĠĠ", "\"}", "\"]", "},", "{\"",
    ];
    let numbers = (0..1100).map(|n| if n < 1000 { n.to_string() } else { format!("{:02}", n - 1000) });
    let marks = MARKS.iter().flat_map(|mark| ["", "Ġ"].map(|space| format!("{space}{mark}")));
    let pairs = SYLLABLES.iter().flat_map(|a| SYLLABLES.iter().map(move |b| format!("{a}{b}")));
    let triples = pairs.clone().flat_map(|pair| SYLLABLES.iter().map(move |c| format!("{pair}{c}")));
    let words = SYLLABLES.iter().map(|word| (*word).to_owned()).chain(pairs).chain(triples);
    let spaced = words.flat_map(|word| [word.clone(), format!("Ġ{word}")]);
    let mut seen = std::collections::HashSet::new();
    numbers.chain(marks).chain(spaced).filter(move |word| word.chars().count() > 1 && seen.insert(word.clone()))
}

fn expect_ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
