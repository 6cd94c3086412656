//! The strings that end an output.

/// Finds stop strings in text that comes in pieces.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Whether a stop string is part of the text that it ends.
    include: bool,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// How many of its bytes no stop string may end in.
    passed: usize,
}

/// What a [`StopMatcher`] makes of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screened {
    /// Text that is certainly part of the output.
    pub text: String,
    /// The index of the stop string that was found, if one was; the text ends before it, or with it if it is included.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`, which are part of the text that they end if `include`; empty strings are ignored.
    pub fn new(stops: Vec<String>, include: bool) -> Self {
        StopMatcher { stops, include, ..Self::default() }
    }

    /// Whether there is nothing to be found.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Adds a piece of text. After a stop string was found, nothing more is to be added.
    pub fn push(&mut self, piece: &str) -> Screened {
        if self.stops.is_empty() {
            return Screened { text: piece.to_owned(), stop: None };
        }
        self.held.push_str(piece);
        if let Some((at, index)) = self.find() {
            self.held.truncate(if self.include { at + self.stops[index].len() } else { at });
            return Screened { text: std::mem::take(&mut self.held), stop: Some(index) };
        }
        Screened { text: self.release(), stop: None }
    }

    /// Adds a piece of text that no stop string may end in, and returns what is certainly part of the output. One may begin
    /// in it.
    pub fn pass(&mut self, piece: &str) -> String {
        if self.stops.is_empty() {
            return piece.to_owned();
        }
        self.held.push_str(piece);
        self.passed = self.held.len();
        self.release()
    }

    /// The first stop string in what is held, by where it begins and its index.
    fn find(&self) -> Option<(usize, usize)> {
        let found = self.stops().filter_map(|(index, stop)| {
            let from = self.held.ceil_char_boundary((self.passed + 1).saturating_sub(stop.len()));
            Some((from + self.held.get(from..)?.find(stop)?, index))
        });
        found.min()
    }

    /// Takes out what cannot be part of a stop string any more.
    fn release(&mut self) -> String {
        let longest = self.stops().map(|(_, stop)| stop.len() - 1).max().unwrap_or(0);
        let certain = (0..=self.held.len())
            .rev()
            .take(longest + 1)
            .filter(|at| self.held.is_char_boundary(*at))
            .filter(|at| self.stops().any(|(_, stop)| stop.starts_with(&self.held[*at..])))
            .last()
            .unwrap_or(self.held.len());
        self.passed = self.passed.saturating_sub(certain);
        let held = self.held.split_off(certain);
        std::mem::replace(&mut self.held, held)
    }

    fn stops(&self) -> impl Iterator<Item = (usize, &str)> {
        self.stops.iter().map(String::as_str).enumerate().filter(|(_, stop)| !stop.is_empty())
    }

    /// Returns what was held back: the output ended, so it was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect(), false);
        let mut texts = Vec::new();
        for piece in pieces {
            let screened = matcher.push(piece);
            texts.push(screened.text);
            if screened.stop.is_some() {
                return (texts, screened.stop);
            }
        }
        texts.push(matcher.finish());
        (texts, None)
    }

    #[test]
    fn stop_strings_are_found_across_pieces() {
        assert_eq!(
            screen(&["END"], &["a", "E", "N", "D", "b"]),
            (vec!["a".into(), "".into(), "".into(), "".into()], Some(0))
        );
        assert_eq!(screen(&["x", "b"], &["abx"]), (vec!["a".into()], Some(1)));
        assert_eq!(screen(&["b", "abc"], &["a", "b"]), (vec!["".into(), "a".into()], Some(0)));
        assert_eq!(screen(&["\n\n"], &["a\n", "b\n", "\nc"]), (vec!["a".into(), "\nb".into(), "".into()], Some(0)));
    }

    #[test]
    fn what_was_no_stop_string_comes_out() {
        assert_eq!(screen(&["END"], &["EN", "X"]).0.concat(), "ENX");
        assert_eq!(screen(&["END"], &["a EN"]).0.concat(), "a EN");
        assert_eq!(screen(&["ab"], &["aaa", "a"]).0, ["aa", "a", "a"]);
        assert_eq!(screen(&["é!"], &["xé", "é", "?"]).0, ["x", "é", "é?", ""]);
        assert_eq!(screen(&["", "q"], &["abc"]).0, ["abc", ""]);
        assert_eq!(screen(&[], &["abc"]).0, ["abc", ""]);
    }

    #[test]
    fn nothing_is_held_longer_than_needed() {
        let mut matcher = StopMatcher::new(vec!["stop".into()], false);
        assert_eq!(matcher.push("lists").text, "list");
        assert_eq!(matcher.push("to").text, "");
        assert_eq!(matcher.push("re").text, "store");
    }

    #[test]
    fn a_stop_string_may_be_included() {
        let mut matcher = StopMatcher::new(vec!["b c".into(), "c".into()], true);
        assert_eq!(matcher.push("a b"), Screened { text: "a ".into(), stop: None });
        assert_eq!(matcher.push(" cd"), Screened { text: "b c".into(), stop: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn no_stop_string_ends_in_what_is_passed() {
        let matcher = |stops: &[&str]| StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect(), false);
        let mut m = matcher(&["ab", "abcd", "é"]);
        assert_eq!(m.pass("xabéab"), "xabé");
        // What was held is neither found nor lost.
        assert_eq!(m.push("y"), Screened { text: "aby".into(), stop: None });
        assert_eq!(m.pass("ab"), "");
        assert_eq!(m.push("cd."), Screened { text: "".into(), stop: Some(1) });
        // One may begin in it.
        let mut m = matcher(&["END"]);
        assert_eq!(m.pass("END EN"), "END ");
        assert_eq!(m.push("D!"), Screened { text: "".into(), stop: Some(0) });
        let mut m = matcher(&["aa"]);
        assert_eq!(m.pass("aaa"), "aa");
        assert_eq!(m.push("a"), Screened { text: "".into(), stop: Some(0) });
        let mut m = matcher(&["END"]);
        assert_eq!((m.pass("END EN"), m.finish()), ("END ".into(), "EN".into()));
    }
}
