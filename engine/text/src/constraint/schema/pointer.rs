//! JSON pointers, which identify positions in schemas.

use serde_json::Value;

/// Maximum bytes of a reference.
const MAX_BYTES: usize = 4096;

/// Parses a reference into the schema itself: `#` and a JSON pointer, encoded as a URI fragment. Returns the keys.
///
/// # Errors
/// The reason, if it is not such a reference.
pub(super) fn parse(reference: &str) -> Result<Vec<String>, &'static str> {
    if reference.len() > MAX_BYTES {
        return Err("is longer than 4096 bytes");
    }
    let fragment = reference.strip_prefix('#').ok_or("is not within this schema: it must begin with #/")?;
    let decoded = percent_decoded(fragment).ok_or("has a % that encodes no character")?;
    if decoded.is_empty() || decoded == "/" {
        return Ok(Vec::new());
    }
    let path = decoded.strip_prefix('/').ok_or("names an anchor: it must be a JSON pointer, which begins with #/")?;
    // This order makes `~01` into `~1`.
    Ok(path.split('/').map(|key| key.replace("~1", "/").replace("~0", "~")).collect())
}

/// Returns the value at `path`. Indices have no leading zeros, so each value has only one path.
pub(super) fn find<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Object(members) => members.get(key),
        Value::Array(items) => {
            let index = key.parse::<usize>().ok()?;
            items.get(index).filter(|_| index.to_string() == *key)
        }
        _ => None,
    })
}

/// Escapes a key for a JSON pointer.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn escaped_keys_are_found() {
        let root = json!({"$defs": {"a/b": 1, "a~b": 2, "a%b": 3, "a~1b": 4, "\u{e9} \"": [5, {"": 6}]}});
        for (reference, expected) in [
            ("#/$defs/a~1b", json!(1)),
            ("#/$defs/a~0b", json!(2)),
            ("#/$defs/a%25b", json!(3)),
            ("#/$defs/a~01b", json!(4)),
            ("#/%24defs/%C3%A9%20%22/1/", json!(6)),
            ("#/$defs/\u{e9} \"/0", json!(5)),
            ("#", root.clone()),
            ("#/", root.clone()),
        ] {
            assert_eq!(find(&root, &parse(reference).unwrap()), Some(&expected), "{reference}");
        }
        for reference in ["#/$defs/\u{e9} \"/00", "#/$defs/\u{e9} \"/+0"] {
            assert_eq!(find(&root, &parse(reference).unwrap()), None, "{reference}");
        }
        for reference in ["other.json#/a", "#anchor", "#/a%2", "#/a%zz", "#/%ff", ""] {
            assert!(parse(reference).is_err(), "{reference}");
        }
        assert!(parse(&"#/a".repeat(2000)).is_err_and(|why| why.contains("longer")));
    }
}
