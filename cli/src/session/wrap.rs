//! Wraps text that arrives in pieces, between words and at the terminal's width.

use std::mem;

use unicode_width::UnicodeWidthChar;

/// Breaks lines between words.
#[derive(Debug)]
pub struct Wrap {
    width: usize,
    /// Columns used in the current line.
    column: usize,
    /// White space and a word that are not printed yet, because more of the word may follow.
    space: String,
    word: String,
}

impl Wrap {
    /// Creates a wrapper for lines of up to `width` columns.
    pub fn new(width: usize) -> Self {
        Wrap { width, column: 0, space: String::new(), word: String::new() }
    }

    /// Takes a piece of text. Returns the text to print now.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => {
                    self.place(&mut out);
                    self.space.clear();
                    self.column = 0;
                    out.push('\n');
                }
                ' ' | '\t' => {
                    self.place(&mut out);
                    self.space.push(c);
                }
                c => {
                    self.word.push(c);
                    // Scripts with wide characters have no spaces. The terminal breaks words that are longer than a
                    // line.
                    if c.width() == Some(2) || columns(&self.word) >= self.width {
                        self.place(&mut out);
                    }
                }
            }
        }
        out
    }

    /// Returns the text that is not printed yet.
    pub fn flush(&mut self) -> String {
        let mut out = String::new();
        self.place(&mut out);
        out
    }

    /// Prints the pending word, on the next line if it does not fit.
    fn place(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let (space, word) = (mem::take(&mut self.space), mem::take(&mut self.word));
        let may_break = self.column > 0 && (!space.is_empty() || word.chars().any(|c| c.width() == Some(2)));
        if may_break && self.column + columns(&space) + columns(&word) > self.width {
            out.push('\n');
            self.column = 0;
        } else {
            self.column += columns(&space);
            out.push_str(&space);
        }
        self.column += columns(&word);
        // The terminal broke a word longer than a line.
        if self.column > self.width {
            self.column = (self.column - 1) % self.width + 1;
        }
        out.push_str(&word);
    }
}

fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(if c == '\t' { 8 } else { 0 })).sum()
}

#[cfg(test)]
mod tests {
    use super::Wrap;

    fn wrapped(width: usize, pieces: &[&str]) -> String {
        let mut wrap = Wrap::new(width);
        let text: String = pieces.iter().map(|piece| wrap.push(piece)).collect();
        text + &wrap.flush()
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped(10, &["Once upon a time there was."]), "Once upon\na time\nthere was.");
        assert_eq!(wrapped(10, &["On", "ce up", "on", " a ti", "me"]), "Once upon\na time");
        assert_eq!(wrapped(80, &["short"]), "short");
    }

    #[test]
    fn breaks_and_indentation_of_the_text_stay() {
        assert_eq!(wrapped(10, &["a\n\n  b c\n", "d"]), "a\n\n  b c\nd");
        assert_eq!(wrapped(10, &["twelve  and\nthen"]), "twelve\nand\nthen");
    }

    #[test]
    fn long_words_and_wide_characters_break_anywhere() {
        assert_eq!(wrapped(4, &["ab abcdefghij k"]), "ab\nabcdefghij k");
        assert_eq!(wrapped(4, &["日本語"]), "日本\n語");
    }

    #[test]
    fn a_piece_without_a_space_waits_for_the_end_of_its_word() {
        let mut wrap = Wrap::new(10);
        assert_eq!(wrap.push("Once upon a"), "Once upon");
        assert_eq!(wrap.push("ny time"), "\nany");
        assert_eq!(wrap.flush(), " time");
    }
}
