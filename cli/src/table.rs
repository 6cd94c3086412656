//! Plain-text tables.

use std::fmt;

/// Rows under headings. A column is as wide as its widest entry. Columns of numbers are right-aligned.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, entries: [String; N]) {
        self.rows.push(entries.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let entry = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| self.rows.iter().map(|row| entry(row, column).chars().count()).max().unwrap_or(0);
        let numeric = |column| {
            let number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(' ');
            self.rows.len() > 1
                && self.rows[1..].iter().all(|row| number(&entry(row, column)) || entry(row, column) == "-")
        };
        let columns: Vec<_> = (0..columns).map(|column| (width(column), numeric(column))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, &(width, numeric)) in columns.iter().enumerate() {
                let text = entry(row, column);
                line += &if numeric { format!("{text:>width$}  ") } else { format!("{text:width$}  ") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["name", "n", "note"]);
        table.row(["a".into(), "1000".into(), "x y".into()]);
        table.row(["long".into(), "-".into(), "".into()]);
        assert_eq!(table.to_string(), "name     n  note\na     1000  x y\nlong     -\n");
    }
}
