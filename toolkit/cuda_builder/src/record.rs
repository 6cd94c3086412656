//! The record next to prebuilt PTX, such as `sm_80.inputs`: what the PTX was made from. It is a file of its own so that a
//! change of comments, which changes the hash, does not rewrite megabytes of PTX.

/// A record's text.
pub fn text(inputs: &str, compiler: &str) -> String {
    format!("inputs {inputs}\ncompiler {compiler}\n")
}

/// The value of the line that begins with `name`.
pub fn value<'a>(record: &'a str, name: &str) -> Option<&'a str> {
    record.lines().filter_map(|line| line.split_once(' ')).find(|(n, _)| *n == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_written() {
        let record = text("77", "rustc 1.2.3 (abc)");
        assert_eq!((value(&record, "inputs"), value(&record, "compiler")), (Some("77"), Some("rustc 1.2.3 (abc)")));
        assert_eq!(value(&record, "input"), None);
    }
}
