//! Counts the parts of regular expressions.

use regex_syntax::ast::{self, Ast, ErrorKind, RepetitionKind, RepetitionRange, Visitor};

use super::super::schema;
use super::tally::Tally;

/// Maximum bytes of a regular expression.
const MAX_BYTES: usize = 64 << 10;
/// Maximum nesting of groups, classes and repetitions.
const MAX_NESTING: u32 = 100;
/// Maximum number of times that nested repetitions may repeat a part in total.
const MAX_TIMES: u64 = 1_000_000;

/// Counts the parts of `pattern`, including its lookaheads. Ignores syntax errors, which are reported later.
pub(super) fn count(pattern: &str, tally: &mut Tally) -> Result<(), String> {
    if pattern.len() > MAX_BYTES {
        return Err(format!("a regular expression may have {MAX_BYTES} bytes at most"));
    }
    if !count_plain(pattern, tally)? {
        return Ok(());
    }
    // A pattern that cannot be split is refused before anything is compiled.
    let conditions = schema::conditions(pattern).unwrap_or_default();
    tally.is_heavy |= !conditions.is_empty();
    conditions.iter().try_for_each(|condition| count_plain(condition, tally).map(drop))
}

/// Counts the parts of a pattern that does not look around. Returns whether it looks around instead.
fn count_plain(pattern: &str, tally: &mut Tally) -> Result<bool, String> {
    let parsed = ast::parse::ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(pattern);
    match parsed {
        Ok(ast) => ast::visit(&ast, Counter { tally, times: Vec::new() }).map(|()| false),
        Err(error) => match error.kind() {
            ErrorKind::NestLimitExceeded(_) => {
                Err(format!("a regular expression may nest {MAX_NESTING} levels at most"))
            }
            kind => Ok(*kind == ErrorKind::UnsupportedLookAround),
        },
    }
}

struct Counter<'a> {
    tally: &'a mut Tally,
    /// For each enclosing repetition, the product of its count and the counts of the repetitions around it.
    times: Vec<u64>,
}

impl Visitor for Counter<'_> {
    type Output = ();
    type Err = String;

    fn finish(self) -> Result<(), String> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), String> {
        self.tally.regex_parts += 1;
        match ast {
            Ast::ClassUnicode(_) => self.tally.classes += 1,
            Ast::Repetition(repetition) => {
                self.tally.repeats += 1;
                let times = u64::from(most(&repetition.op.kind)).max(1);
                let times = self.times.last().unwrap_or(&1).saturating_mul(times);
                if times > MAX_TIMES {
                    return Err(format!("nested repetitions may repeat a part {MAX_TIMES} times at most"));
                }
                self.times.push(times);
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), String> {
        if matches!(ast, Ast::Repetition(_)) {
            self.times.pop();
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ast::ClassSetItem) -> Result<(), String> {
        self.tally.regex_parts += 1;
        self.tally.classes += usize::from(matches!(item, ast::ClassSetItem::Unicode(_)));
        Ok(())
    }
}

/// Returns the largest number in a repetition, or 1 for `?`, `*` and `+`.
fn most(kind: &RepetitionKind) -> u32 {
    match kind {
        RepetitionKind::Range(RepetitionRange::Exactly(n) | RepetitionRange::AtLeast(n)) => *n,
        RepetitionKind::Range(RepetitionRange::Bounded(_, n)) => *n,
        RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pattern: &str) -> Result<Tally, String> {
        let mut tally = Tally::default();
        count(pattern, &mut tally).map(|()| tally)
    }

    #[test]
    fn lookaheads_are_counted() {
        let tally = counted(r"^(?=.*[a-c]{3})(?!\pL{2})x{4}").unwrap();
        assert!(tally.is_heavy && tally.classes == 1);
        assert_eq!(tally.repeats, 4);
        assert!(counted("^(?!(a{2000}){2000})").unwrap_err().contains("times"));
        let deep = format!("^(?=a){}{}", "(".repeat(200), ")".repeat(200));
        assert!(counted(&deep).unwrap_err().contains("nest"));
        assert!(!counted("a(?=b)").unwrap().is_heavy, "it is refused later");
    }
}
