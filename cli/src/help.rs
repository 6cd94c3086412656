//! Formats help pages from the names and descriptions that the commands declare.

use argh::{FlagInfo, FlagInfoKind};

use crate::command::{Command, Program};

/// Maximum characters per line.
pub const WIDTH: usize = 100;
/// The column where descriptions of options begin.
const COLUMN: usize = 34;

/// Returns the help page of `command`.
pub fn page(program: &Program, command: &Command) -> String {
    let mut page = format!("{}\n\nUsage: {}", wrapped((command.info)().description, 0, 0), usage(program, command));
    if command.is_default() {
        let others =
            program.commands.iter().filter(|command| !command.is_default() && !command.name.starts_with("bench "));
        let mut usages: Vec<String> = others.map(|command| usage(program, command)).collect();
        usages.extend(["quire bench <command> [options]\n".into(), "quire help [command]\n".into()]);
        page.extend(usages.iter().map(|usage| format!("       {usage}")));
    }
    let mut listed = vec!["--help"];
    for (heading, names) in command.groups {
        let flags = names.iter().filter_map(|name| command.flags().find(|flag| flag.long == *name));
        page.push_str(&group(heading, flags));
        listed.extend(*names);
    }
    let own = command.own_flags().iter().filter(|flag| !listed.contains(&flag.long));
    page.push_str(&group("Options", own));
    page.push_str(&group("Engine", command.engine_flags().filter(|flag| !listed.contains(&flag.long))));
    page.push_str(&format!("\n{}", entry("  -h, --help", "print this page")));
    if !command.examples.is_empty() {
        page.push_str("\nExamples\n");
        page.extend(command.examples.iter().map(|example| format!("  {example}\n")));
    }
    page
}

/// Lists the commands whose names begin with `prefix`: `bench ` or nothing. Each of them also has its own page.
pub fn group_page(program: &Program, prefix: &str) -> String {
    let about = if prefix.is_empty() { program.about } else { "Measure an engine or a server under load." };
    let mut page = format!(
        "{}\n\nUsage: {name} {prefix}<command> [options]\n       {name} help {prefix}<command>\n\nCommands\n",
        wrapped(about, 0, 0),
        name = program.name
    );
    for (command, name) in program.commands.iter().filter_map(|c| Some((c, c.name.strip_prefix(prefix)?))) {
        let description = (command.info)().description;
        let first = description.split_inclusive(". ").next().unwrap_or_default().trim_end();
        page.push_str(&format!("  {name:<12} {}\n", wrapped(first, 15, 15)));
    }
    page
}

/// Returns the text that `quire` prints on a terminal without arguments.
pub fn hello() -> String {
    let first =
        format!("Quire {} runs and serves large language models. Three things to try:", env!("CARGO_PKG_VERSION"));
    let try_this = [
        ("quire -p \"Once upon a time\"", "a story by the small built-in model"),
        ("quire serve", "a server with the APIs of OpenAI and Anthropic, and a live status page"),
        ("quire opt-125m -p \"The answer is\"", "a model from the Hugging Face hub"),
    ];
    let lines = try_this.map(|(words, what)| format!("  {words:<36} {what}\n")).concat();
    format!("{first}\n\n{lines}\nquire --help shows all options.\n")
}

fn usage(program: &Program, command: &Command) -> String {
    format!("{} {}[options]\n", program.call(command), command.positionals.shown())
}

fn group<'a>(heading: &str, flags: impl Iterator<Item = &'a FlagInfo<'a>>) -> String {
    let lines: String = flags.map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{heading}\n{lines}") }
}

fn line(flag: &FlagInfo<'_>) -> String {
    let value = match flag.kind {
        FlagInfoKind::Option { arg_name } => format!(" <{arg_name}>"),
        FlagInfoKind::Switch => String::new(),
    };
    let short = flag.short.map_or("    ".into(), |short| format!("-{short}, "));
    entry(&format!("  {short}{}{value}", flag.long), flag.description)
}

/// Formats an option's name and its description.
fn entry(name: &str, meaning: &str) -> String {
    let first = name.chars().count().max(COLUMN - 1) + 1;
    format!("{name:<width$} {}\n", wrapped(meaning, first, COLUMN), width = COLUMN - 1)
}

/// Wraps a text into lines. `first` characters already precede it on the first line. Later lines are indented.
fn wrapped(text: &str, first: usize, indent: usize) -> String {
    let (mut page, mut column) = (String::new(), first);
    for (i, word) in text.split_whitespace().enumerate() {
        let len = word.chars().count();
        if i > 0 && column + 1 + len > WIDTH {
            page.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if i > 0 {
            page.push(' ');
            column += 1;
        }
        page.push_str(word);
        column += len;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped() {
        let text = ["word"; 30].join(" ");
        let lines = wrapped(&text, 40, 10);
        assert!(lines.lines().nth(1).is_some_and(|line| line.starts_with("          word word")), "{lines}");
        assert_eq!(lines.split_whitespace().collect::<Vec<_>>().join(" "), text);
    }
}
