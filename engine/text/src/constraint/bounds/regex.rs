//! Counts the parts of regular expressions.

use regex_syntax::ast::{self, Ast, ErrorKind, RepetitionKind, RepetitionRange, Visitor};

use super::tally::Tally;

/// Maximum bytes of a regular expression.
const MAX_BYTES: usize = 64 << 10;
/// Maximum nesting of groups, classes and repetitions.
const MAX_NESTING: u32 = 100;
/// Maximum number of times that nested repetitions may repeat a part in total.
const MAX_TIMES: u64 = 1_000_000;

/// Counts the parts of `pattern`. Ignores syntax errors, which the library reports.
pub(super) fn count(pattern: &str, tally: &mut Tally) -> Result<(), String> {
    if pattern.len() > MAX_BYTES {
        return Err(format!("a regular expression may have {MAX_BYTES} bytes at most"));
    }
    let parsed = ast::parse::ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(pattern);
    match parsed {
        Ok(ast) => ast::visit(&ast, Counter { tally, times: Vec::new() }),
        Err(error) if matches!(error.kind(), ErrorKind::NestLimitExceeded(_)) => {
            Err(format!("a regular expression may nest {MAX_NESTING} levels at most"))
        }
        Err(_) => Ok(()),
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
