//! Suggestions for a mistyped name.

use strsim::osa_distance;

/// Longer names are not compared, and longer words are shortened in messages. In characters.
const LONGEST: usize = 40;

/// Returns the name that is closest to `word`, if it is close enough: at most a third of the characters differ, or
/// `word` is a prefix of the name.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.trim_start_matches('-').to_ascii_lowercase();
    let word = plain(word);
    if !(2..=LONGEST).contains(&word.chars().count()) {
        return None;
    }
    let distance = |name: &str| {
        let far = osa_distance(&word, &plain(name));
        if plain(name).starts_with(&word) { far.min(1) } else { far }
    };
    let near = names
        .map(|name| (distance(name), name))
        .filter(|(far, name)| *far <= (plain(name).len().max(word.len()) / 3).max(1));
    near.min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// Formats a word for a message: quoted, on one line and shortened.
pub fn shown(word: &str) -> String {
    let (plain, cut): (String, _) = (word.chars().take(LONGEST).collect(), word.chars().nth(LONGEST).is_some());
    format!("{plain:?}{}", if cut { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_not() {
        let meant = |word| nearest(word, ["--prompt", "--prompts", "--temperature", "--n", "--port"].into_iter());
        assert_eq!(meant("--promt"), Some("--prompt"));
        assert_eq!(meant("--propmt"), Some("--prompt"));
        assert_eq!(meant("-prompts"), Some("--prompts"));
        assert_eq!(meant("--temp"), Some("--temperature"));
        assert_eq!(meant("--PORT"), Some("--port"));
        assert_eq!([meant("--colour"), meant("--x"), meant("--"), meant(&"p".repeat(100_000))], [None; 4]);
    }

    #[test]
    fn words_are_shown_in_one_short_line() {
        assert_eq!(shown("a\nb\u{1b}"), r#""a\nb\u{1b}""#);
        assert_eq!(shown(&"x".repeat(1000)).len(), LONGEST + 5);
    }
}
