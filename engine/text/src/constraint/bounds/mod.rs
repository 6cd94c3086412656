//! Bounds on grammars, checked before they are compiled.
//!
//! The library compiles by recursion, and some small grammars take it minutes and gigabytes. These checks read a grammar once, in
//! linear time, and refuse grammars that nest too deep or are too large. They also separate light grammars, which compile in some
//! milliseconds, from heavy ones, which a server tries in a child process first.

mod lark;
mod regex;
mod schema;
mod tally;

use llguidance::api::TopLevelGrammar;

use self::tally::Tally;

/// Bytes of stack for compiling. [`tally::MAX_LEVELS`] levels take up to 10 MB, [`tally::MAX_RULES`] rules 16 MB.
const STACK_BYTES: usize = 128 << 20;

/// How much work it may be to compile a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Milliseconds.
    Light,
    /// Unknown.
    Heavy,
}

/// The weight of the grammar that `sources` make up.
///
/// # Errors
/// A sentence, if it exceeds a bound.
pub(super) fn check(sources: &[TopLevelGrammar]) -> Result<Weight, String> {
    let mut tally = Tally::default();
    for part in sources.iter().flat_map(|source| &source.grammars) {
        if let Some(value) = &part.json_schema {
            schema::count(value, &mut tally)?;
        }
        if let Some(text) = &part.lark_grammar {
            lark::count(text, &mut tally)?;
        }
    }
    tally.weight()
}

/// Runs `work` on a thread whose stack suffices for every grammar within the bounds.
///
/// # Errors
/// A sentence, if the thread cannot start or `work` panics.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| format!("no thread to compile on: {error}"))?;
        thread.join().map_err(|_| "compiling the grammar failed".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_the_large_stack_may_nest_deep() {
        fn depth(left: usize) -> usize {
            let frame = std::hint::black_box([left as u8; 1024]);
            if left == 0 { usize::from(frame[0]) } else { 1 + depth(left - 1) }
        }
        assert_eq!(on_large_stack(|| depth(50_000)), Ok(50_000));
        assert!(on_large_stack(|| panic!("on purpose")).is_err_and(|why: String| why.contains("failed")));
    }
}
