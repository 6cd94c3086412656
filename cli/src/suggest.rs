//! Suggestions for a mistyped name.

use strsim::osa_distance;

/// The longest name that is compared, in characters.
const LONGEST: usize = 40;

/// The one of `names` that `word` is nearest to, if it is near enough: a third of the characters at most are other ones,
/// or it is the beginning of the name.
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

/// A word as a message shows it: in one line, and not too long.
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
