//! Bounds on grammars, checked before they are compiled.
//!
//! The library compiles recursively, and some small grammars cost it minutes and gigabytes. These checks read a grammar
//! once, in linear time, and refuse grammars that nest too deeply or are too large. They also tell light grammars,
//! which compile in a few milliseconds, from heavy ones. A server first tries a heavy grammar in a child process.

mod lark;
mod levels;
mod regex;
mod schema;
mod tally;

use llguidance::api::TopLevelGrammar;

use self::tally::Tally;

/// Stack size for compilation, in bytes. [`tally::MAX_LEVELS`] levels take up to 10 MB and [`tally::MAX_RULES`] rules
/// 16 MB.
const STACK_BYTES: usize = 128 << 20;

/// The expected cost of compiling a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Milliseconds.
    Light,
    /// Unknown.
    Heavy,
}

/// Returns the weight of the grammar that consists of `sources`, each after its origin.
///
/// # Errors
/// A sentence for the user, if the grammar exceeds a limit.
pub(super) fn check(sources: &[(&str, TopLevelGrammar)]) -> Result<Weight, String> {
    let mut tally = Tally::default();
    for (origin, part) in sources.iter().flat_map(|(origin, source)| source.grammars.iter().map(move |p| (origin, p))) {
        if let Some(value) = &part.json_schema {
            schema::count(value, &mut tally).map_err(|why| format!("{origin}{why}"))?;
        }
        if let Some(text) = &part.lark_grammar {
            lark::count(text, &mut tally).map_err(|why| format!("{origin}{why}"))?;
        }
    }
    tally.weight()
}

/// Runs `work` on a thread with enough stack for every grammar within the limits.
///
/// # Errors
/// A sentence for the user, if the thread cannot start or `work` panics.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| format!("cannot start a thread to compile on: {error}"))?;
        thread.join().map_err(|_| "compiling the grammar failed".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_the_large_stack_may_nest_deeply() {
        fn depth(left: usize) -> usize {
            let frame = std::hint::black_box([left as u8; 1024]);
            if left == 0 { usize::from(frame[0]) } else { 1 + depth(left - 1) }
        }
        assert_eq!(on_large_stack(|| depth(50_000)), Ok(50_000));
        assert!(on_large_stack(|| panic!("on purpose")).is_err_and(|why: String| why.contains("failed")));
    }
}
