//! The record next to prebuilt PTX, such as `sm_80.inputs`: the hash of the inputs and the compiler. It is a separate
//! file because a change of comments changes the hash, and should not rewrite megabytes of PTX.

/// Formats a record.
pub fn text(inputs: &str, compiler: &str) -> String {
    format!("inputs {inputs}\ncompiler {compiler}\n")
}

/// Returns the value of the line that begins with `name`.
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
