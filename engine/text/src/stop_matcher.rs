//! Stop strings, which end an output.

/// Finds stop strings in a text that arrives in pieces.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Whether a stop string is part of the text that it ends.
    include: bool,
    /// Text that is held back because it may be the beginning of a stop string.
    pending: String,
    /// No stop string may end in this many bytes at the start of `pending`.
    passed: usize,
}

/// The result of adding a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screened {
    /// Text that is certainly part of the output.
    pub text: String,
    /// The index of the stop string that was found. The text ends before it, or with it if stop strings are included.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`. With `include`, they are part of the text that they end. Empty strings are ignored.
    pub fn new(stops: Vec<String>, include: bool) -> Self {
        StopMatcher { stops, include, ..Self::default() }
    }

    /// Whether there are no stop strings.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Adds a piece of text. Must not be called again after a stop string was found.
    pub fn push(&mut self, piece: &str) -> Screened {
        if self.stops.is_empty() {
            return Screened { text: piece.to_owned(), stop: None };
        }
        self.pending.push_str(piece);
        if let Some((at, index)) = self.find() {
            self.pending.truncate(if self.include { at + self.stops[index].len() } else { at });
            return Screened { text: std::mem::take(&mut self.pending), stop: Some(index) };
        }
        Screened { text: self.release(), stop: None }
    }

    /// Adds a piece of text that no stop string may end in, and returns the text that is certainly part of the output.
    /// A stop string may begin in the piece.
    pub fn pass(&mut self, piece: &str) -> String {
        if self.stops.is_empty() {
            return piece.to_owned();
        }
        self.pending.push_str(piece);
        self.passed = self.pending.len();
        self.release()
    }

    /// The first stop string in the pending text: its position and its index.
    fn find(&self) -> Option<(usize, usize)> {
        let found = self.stops().filter_map(|(index, stop)| {
            let from = self.pending.ceil_char_boundary((self.passed + 1).saturating_sub(stop.len()));
            Some((from + self.pending.get(from..)?.find(stop)?, index))
        });
        found.min()
    }

    /// Removes and returns the text that cannot be part of a stop string any more.
    fn release(&mut self) -> String {
        let longest = self.stops().map(|(_, stop)| stop.len() - 1).max().unwrap_or(0);
        let certain = (0..=self.pending.len())
            .rev()
            .take(longest + 1)
            .filter(|at| self.pending.is_char_boundary(*at))
            .filter(|at| self.stops().any(|(_, stop)| stop.starts_with(&self.pending[*at..])))
            .last()
            .unwrap_or(self.pending.len());
        self.passed = self.passed.saturating_sub(certain);
        let pending = self.pending.split_off(certain);
        std::mem::replace(&mut self.pending, pending)
    }

    fn stops(&self) -> impl Iterator<Item = (usize, &str)> {
        self.stops.iter().map(String::as_str).enumerate().filter(|(_, stop)| !stop.is_empty())
    }

    /// Returns the pending text. The output has ended, so it was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
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
    fn text_that_is_no_stop_string_is_released() {
        assert_eq!(screen(&["END"], &["EN", "X"]).0.concat(), "ENX");
        assert_eq!(screen(&["END"], &["a EN"]).0.concat(), "a EN");
        assert_eq!(screen(&["ab"], &["aaa", "a"]).0, ["aa", "a", "a"]);
        assert_eq!(screen(&["é!"], &["xé", "é", "?"]).0, ["x", "é", "é?", ""]);
        assert_eq!(screen(&["", "q"], &["abc"]).0, ["abc", ""]);
        assert_eq!(screen(&[], &["abc"]).0, ["abc", ""]);
    }

    #[test]
    fn text_is_held_back_no_longer_than_needed() {
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
    fn no_stop_string_ends_in_passed_text() {
        let matcher = |stops: &[&str]| StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect(), false);
        let mut m = matcher(&["ab", "abcd", "é"]);
        assert_eq!(m.pass("xabéab"), "xabé");
        // The pending text is neither matched nor lost.
        assert_eq!(m.push("y"), Screened { text: "aby".into(), stop: None });
        assert_eq!(m.pass("ab"), "");
        assert_eq!(m.push("cd."), Screened { text: "".into(), stop: Some(1) });
        // A stop string may begin in the passed text.
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
