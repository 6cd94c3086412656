//! Beam searches with a grammar: the sampling kernel finds candidates that the mask allows.

use engine::DType;
use engine::Llm;
use engine::ModelFiles;
use tests::constrained::constrained_searches;

use crate::options;

/// Largest difference between scores in f16 and in f32.
const DRIFT: f64 = 0.01;

#[test]
fn constrained_beams_equal_hugging_face() {
    let mut llm = Llm::load(&ModelFiles::bundled(), &options(DType::F16)).unwrap();
    for (search, done) in constrained_searches(&mut llm) {
        for (got, want) in done.outputs.iter().zip(&search.beams) {
            assert_eq!(got.tokens, want.ids, "{}", search.regex);
            assert!((got.score.unwrap() - want.score).abs() < DRIFT, "{:?} is not {}", got.score, want.score);
        }
    }
}
