//! Translates a template's source into the Jinja that minijinja supports.
//!
//! Hugging Face adds `{% generation %}` to Jinja to mark the assistant's text. It becomes `{% with %}`, a scope that
//! prints its contents. `a % b` and `a ~ b` become function calls (see [`expression`](super::expression)). Everything
//! else stays the same, byte for byte and on the same line.

use super::expression::{self, Token, TokenKind};

/// Maximum tokens in a tag that is translated. Translation takes quadratic time, so longer tags stay as they are.
const MAX_WORDS: usize = 2_000;

/// Returns the source for minijinja.
pub(super) fn translate(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = find_tag(rest) {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = match &tag[..2] {
            "{#" => {
                let end = tag.find("#}").map_or(tag.len(), |at| at + 2);
                out.push_str(&tag[..end]);
                end
            }
            _ => translate_tag(tag, &mut out),
        };
        rest = &tag[end..];
    }
    out + rest
}

/// Returns the position of the next `{{`, `{%` or `{#`.
fn find_tag(source: &str) -> Option<usize> {
    let begins_tag = |&at: &usize| matches!(source.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
    source.match_indices('{').map(|(at, _)| at).find(begins_tag)
}

/// Translates the block or print tag at the start of `source`. Returns the position where the tag ends.
fn translate_tag(source: &str, out: &mut String) -> usize {
    let is_block = source.starts_with("{%");
    let (tokens, end) = expression::tokens(source, if is_block { "%}" } else { "}}" });
    if tokens.len() > MAX_WORDS {
        out.push_str(&source[..end]);
        return end;
    }
    let keyword = tokens.iter().find(|token| token.kind == TokenKind::Name).filter(|_| is_block);
    match keyword {
        Some(Token { text: "raw", .. }) => {
            let end = end_of_raw(source, end);
            out.push_str(&source[..end]);
            return end;
        }
        Some(&Token { text: text @ ("generation" | "endgeneration"), start, .. }) => {
            out.push_str(&source[..start]);
            out.push_str(if text == "generation" { "with" } else { "endwith" });
            out.push_str(&source[start + text.len()..end]);
        }
        _ => expression::translate(&source[..end], &tokens, is_block, out),
    }
    end
}

/// Returns the position after the `{% endraw %}` of a raw block whose opening tag ends at `start`.
fn end_of_raw(source: &str, start: usize) -> usize {
    for (at, _) in source[start..].match_indices("{%") {
        let tag = &source[start + at..];
        let inside = tag[2..].trim_start_matches(['-', '+']).trim_start();
        if let Some(inside) = inside.strip_prefix("endraw") {
            let close = inside.trim_start().trim_start_matches(['-', '+']);
            if let Some(after) = close.strip_prefix("%}") {
                return source.len() - after.len();
            }
        }
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::translate;

    #[test]
    fn text_without_special_tags_is_unchanged() {
        for source in [
            "",
            "{",
            "plain {text} 100% ~",
            "{# a % b ~ c #}{{ x }}",
            "{% raw %}{{ a % b }}{% generation %}{%- endraw +%} {{ '{% generation %}' }}",
            "{{ 'a % b ~ c' }}{{- \"it's } %} }}\" -}}",
            "{%- if x is defined and x['a'] == -1 -%}\n  {{ {'a': {'b': 1}} }}{% endif %}",
            "{{ unclosed",
            "{% if 'unclosed",
            "{{ (a % b }}",
        ] {
            assert_eq!(translate(source), source);
        }
    }

    #[test]
    fn generation_is_a_scope() {
        let source = "{%- generation -%}x{% endgeneration +%}\n{%   generation%}";
        assert_eq!(translate(source), "{%- with -%}x{% endwith +%}\n{%   with%}");
    }

    #[test]
    fn operators_become_calls_with_their_operands() {
        for (source, call) in [
            ("{{ '%s' % x }}", "{{ python_percent('%s', x) }}"),
            ("{{- '%s %s' % (a, b) -}}", "{{- python_format('%s %s', a, b) -}}"),
            ("{{ '%s' % (a) }}", "{{ python_percent('%s', (a)) }}"),
            ("{{ '%s' % (a,) }}", "{{ python_format('%s', a,) }}"),
            (
                "{{ a + b % c.d['e'] | f(g % 2) + h }}",
                "{{ a + python_percent(b, c.d['e'] | f(python_percent(g, 2))) + h }}",
            ),
            ("{% if not loop.index0 % 2 == 0 %}", "{% if not python_percent(loop.index0, 2) == 0 %}"),
            ("{% set x = a * b % -c % d %}", "{% set x = python_percent(python_percent(a * b, -c), d) %}"),
            ("{{ -a % b - c % d }}", "{{ python_percent(-a, b) - python_percent(c, d) }}"),
            ("{{ a ~ b ~ c + d ~ e }}", "{{ python_concat(a, b, c) + python_concat(d, e) }}"),
            (
                "{{ a ~ b % c ~ 'x' 'y' if d ~ e else f }}",
                "{{ python_concat(a, python_percent(b, c), 'x' 'y') if python_concat(d, e) else f }}",
            ),
            ("{% for x in y if x % 2 %}", "{% for x in y if python_percent(x, 2) %}"),
            (
                "{{ f(k=a ~ b, l=[c ~ d, {'e': g ~ h}]) }}",
                "{{ f(k=python_concat(a, b), l=[python_concat(c, d), {'e': python_concat(g, h)}]) }}",
            ),
            ("{{ x[a % 2:] ~ y is string ~ z }}", "{{ python_concat(x[python_percent(a, 2):], y is string, z) }}"),
            ("{{ a is not divisibleby(3) ~ b }}", "{{ python_concat(a is not divisibleby(3), b) }}"),
            ("{%- macro f(a, b='x' ~ 'y') -%}", "{%- macro f(a, b=python_concat('x', 'y')) -%}"),
        ] {
            assert_eq!(translate(source), call);
        }
    }
}
