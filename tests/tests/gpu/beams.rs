//! Beam searches whose outputs must be of a grammar: the kernel finds their candidates behind the masks.

use engine::llm::Llm;
use engine::load::ModelFiles;
use engine::tensor::DType;
use tests::constrained::constrained_searches;

use crate::options;

/// How far scores in f16 are from those in f32, at most.
const DRIFT: f64 = 0.01;

#[test]
fn constrained_beams_are_those_of_hugging_face() {
    let mut llm = Llm::load(&ModelFiles::bundled(), &options(DType::F16)).unwrap();
    for (search, done) in constrained_searches(&mut llm) {
        for (got, want) in done.outputs.iter().zip(&search.beams) {
            assert_eq!(got.tokens, want.ids, "{}", search.regex);
            assert!((got.score.unwrap() - want.score).abs() < DRIFT, "{:?} is not {}", got.score, want.score);
        }
    }
}
