//! Chat templates come with downloaded models. Loading and rendering them must not exhaust memory, the stack or time.
//!
//! Each test runs itself again in a process with little memory. A failed allocation or a stack overflow ends that process.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::process::Command;

use engine::ModelFiles;
use engine::tools::chat::{ChatTemplate, Message, RenderOptions};

/// Address space limit of the rendering process in KiB. It is twice the largest budget here, to leave room for stacks
/// and the program.
const MEMORY_KIB: usize = 1 << 20;
const INSIDE: &str = "QUIRE_TEST_INSIDE";

/// Runs the test `name` in a process with little memory. In that process, runs `test` itself.
fn with_little_memory(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let script = format!("ulimit -v {MEMORY_KIB} && exec \"$0\" --exact {name} --nocapture");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}

fn load(template: &str) -> Result<ChatTemplate, String> {
    let files = ModelFiles::bundled();
    ChatTemplate::of_model(&files, Some(template)).map(Option::unwrap).map_err(|error| error.to_string())
}

fn render(template: &str) -> Result<String, String> {
    let messages = [Message::new("user", "Hello!")];
    load(template)?.render(&messages, &RenderOptions::default()).map_err(|error| error.to_string())
}

/// Asserts that a template is refused, when it is loaded or rendered, with this reason.
fn assert_refused(template: &str, reason: &str) {
    let start: String = template.chars().take(200).collect();
    let error = render(template).map(|text| text.len()).expect_err(&start);
    assert!(error.contains(reason), "{start}: {error}");
}

/// Returns a template that sets `ns.x` to `first` and runs `step`, which changes it, 1000 times.
fn repeated(first: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={first}) %}}{{% for i in range(1000) %}}{step}{{% endfor %}}{{{{ ns.x | length }}}}"
    )
}

const BUDGET: &str = "reads and writes more than";

#[test]
fn doubled_texts_and_lists_are_refused() {
    with_little_memory("doubled_texts_and_lists_are_refused", || {
        for step in [
            "{% set ns.x = ns.x ~ ns.x %}",
            "{% set ns.x = ns.x + ns.x %}",
            "{% set ns.x = ns.x * 2 %}",
            "{% set ns.x = 2 * ns.x %}",
            "{% set ns.x = [ns.x, ns.x] | join %}",
            "{% set ns.x = ns.x | join(ns.x) %}",
            "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
            "{% set ns.x = ns.x | replace('a', 'aa') %}",
            "{% set ns.x = ns.x.replace('a', 'aa') %}",
            "{% set ns.x = ns.x.replace('', 'a') %}",
            "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
            "{% set ns.x = '%(a)s%(a)s' % {'a': ns.x} %}",
            "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
            "{% set ns.x = '{0}{0}'.format(ns.x) %}",
            "{% set ns.x = ns.x | tojson | tojson %}",
            "{% set ns.x = [ns.x, ns.x] | string %}",
            "{% set ns.x = [ns.x, ns.x] | pprint %}",
            "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}",
            "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns.x = twice(ns.x) %}",
            "{% set ns.x = ns.x ~ ns.x | indent(ns.x) %}",
        ] {
            assert_refused(&repeated("'a\\n'", step), BUDGET);
        }
        for step in
            ["{% set ns.x = ns.x + ns.x %}", "{% set ns.x = ns.x * 2 %}", "{% set ns.x = (ns.x + ns.x) | list %}"]
        {
            assert_refused(&repeated("['a']", step), BUDGET);
        }
        let sequential = "{% set x = x ~ x %}".repeat(100);
        assert_refused(&format!("{{% set x = 'a' %}}{sequential}{{{{ x }}}}"), BUDGET);
    });
}

#[test]
fn long_values_from_short_expressions_are_refused() {
    with_little_memory("long_values_from_short_expressions_are_refused", || {
        for expression in [
            "'a' * 2000000000",
            "2000000000 * ('a' ~ 'b')",
            "'a' * 90000000 + 'b' * 90000000",
            "[1] * 2000000000",
            "([1] * 100000) * 100000",
            "['a'] | batch(2000000000, 'b') | list",
            "['a'] | slice(2000000000) | list",
            "range(100000) | join(range(100000) | join)",
            "(range(100000) | join) | replace('1', range(100000) | join)",
            "'{0}{0}{0}{0}'.format(range(100000) | join) * 100",
        ] {
            assert_refused(&format!("{{{{ {expression} }}}}"), BUDGET);
        }
        for format in
            ["'%2000000000d' % 1", "'%.2000000000f' % 1", "'%2000000000d' | format(1)", "'{:2000000000}'.format(1)"]
        {
            assert_refused(&format!("{{{{ {format} }}}}"), "digits");
        }
        // The compiler does not compute constants, either.
        assert!(load("{{ 'a' * 90000000 if false }}").is_ok());
    });
}

#[test]
fn deep_and_self_containing_values_are_refused() {
    with_little_memory("deep_and_self_containing_values_are_refused", || {
        for step in ["{% set ns.x = [ns.x] %}", "{% set ns.x = {'a': ns.x} %}", "{% set ns.x = dict(a=ns.x) %}"] {
            assert_refused(&repeated("['a']", step), "nest deeper");
        }
        // These are small in memory but grow exponentially as trees.
        for step in ["{% set ns.x = [ns.x, ns.x] %}", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"] {
            assert_refused(&repeated("['a']", step), BUDGET);
        }
        for step in [
            "{% set ns.x = ns %}",
            "{% set ns.x = [ns] %}",
            "{% set ns.x = namespace(x=ns) %}",
            "{% set ns.x = loop %}",
            "{% macro m() %}{% endmacro %}{% set ns.x = m %}",
            "{% set ns.x = cycler(ns.x) %}",
            "{% set ns.x = [range] %}",
        ] {
            assert_refused(&repeated("['a']", step), "can only hold data");
        }
        // Slices and filtered lists are real lists, not chains of views.
        for step in ["{% set ns.x = ns.x[0:] %}", "{% set ns.x = ns.x | list %}", "{% set ns.x = ns.x | reverse %}"] {
            assert_eq!(render(&repeated("['a']", step).replace("1000", "20000")), Ok("1".into()));
        }
    });
}

#[test]
fn long_and_deep_sources_are_refused() {
    with_little_memory("long_and_deep_sources_are_refused", || {
        let print = |expression: String| format!("{{{{ {expression} }}}}");
        let many = |text: &str| text.repeat(50_000);
        for source in [
            print(many("1+") + "1"),
            print(many("1~") + "1"),
            print(many("x%") + "1"),
            print(many("1==") + "1"),
            print(many("not ") + "1"),
            print(many("-") + "1"),
            print(many("(") + "1" + &many(")")),
            print(many("[") + &many("]")),
            print("x".to_owned() + &many(".y")),
            print("x".repeat(300)),
            print("x.".to_owned() + &"x".repeat(300)),
            print("x".to_owned() + &many("|e")),
            print("x".to_owned() + &many("[0]")),
            print(many("1 if 1 else ") + "1"),
            print(many("'a' ")),
            format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(20_000)),
            format!("{}{}", "{% if x %}".repeat(20_000), "{% endif %}".repeat(20_000)),
            format!("{}{}", "{% for x in y %}".repeat(10_000), "{% endfor %}".repeat(10_000)),
            format!("{{% set x = {} %}}", "{'a': ".repeat(20_000)),
            "a".repeat(1 << 20),
            "{{".repeat(100_000),
            "{%".repeat(100_000),
            "{#".repeat(100_000),
            "{% raw %}".repeat(50_000),
        ] {
            let start: String = source.chars().take(20).collect();
            assert!(load(&source).is_err(), "{start}");
        }
        // The largest tags that are accepted.
        for (expression, result) in [
            (format!("{}1", "1+".repeat(999)), "1000"),
            (format!("{}1", "not ".repeat(1998)), "True"),
            (format!("{}1", "1 if 1 else ".repeat(499)), "1"),
            (format!("'x'{}", "|e".repeat(999)), "x"),
        ] {
            assert_eq!(render(&print(expression)).as_deref(), Ok(result));
        }
        let branches = format!("{{% if 0 %}}{}{{% else %}}x{{% endif %}}", "{% elif 0 %}".repeat(2_000));
        assert_eq!(render(&branches).as_deref(), Ok("x"));
    });
}

#[test]
fn work_that_needs_no_memory_is_bounded() {
    with_little_memory("work_that_needs_no_memory_is_bounded", || {
        let with_text = |body: &str| {
            format!(
                "{{% set x = 'ab' * 1000000 %}}{{% set y = 'ab' * 1000000 %}}{{% for i in range(99999) %}}{body}{{% endfor %}}"
            )
        };
        for body in [
            "{% if x == y %}{% endif %}",
            "{% if 'c' in x %}{% endif %}",
            "{% if x is eq y %}{% endif %}",
            "{% if x is lower %}{% endif %}",
            "{% if 1 < 2 < x | length %}{% endif %}",
            "{% set z = x[-1:] %}",
            "{% set z = x[-1] %}",
            "{% set z = x | length %}",
            "{% set z = x.find('c') %}",
            "{% set z = x.count('') %}",
            "{% set z = loop.changed(x) %}",
            "{% for c in x %}{% break %}{% endfor %}",
            "{% set z = {x: 1} %}",
            "{% set z = {[x]: 1} %}",
            "{% set z = x in {'a': 1} %}",
            "{% set z = 'a' < x in {'a': 1} %}",
            "{% set z = {'a': 1}.get(x) %}",
            "{% set z = x.strip(y) %}",
            "{% set z = x | trim(y) %}",
            "{% set z = range(9999) | map(attribute=x) | list %}",
            "{% set z = messages | groupby(x) | list %}",
            "{% set z = (x | list | sort) %}",
            "{% set z = (messages[0])[x] %}",
            "{{ x }}",
            "{% set z %}{{ x }}{% endset %}",
        ] {
            assert_refused(&with_text(body), BUDGET);
        }
        let raw = "long ".repeat(20_000);
        assert_refused(&format!("{{% for i in range(99999) %}}{raw}{{% endfor %}}"), BUDGET);
        assert_refused(&format!("{{% set x %}}{{% for i in range(99999) %}}{raw}{{% endfor %}}{{% endset %}}"), BUDGET);
        let macros = "{% for i in range(99999) %}{% macro m() %}{% macro n() %}{% endmacro %}{% endmacro %}{{ m() }}{% endfor %}";
        assert_refused(macros, BUDGET);
        assert_refused("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit");
        assert_refused("{% include 'chat' %}", "no other templates");
    });
}

#[test]
fn templates_cannot_redefine_the_checks() {
    with_little_memory("templates_cannot_redefine_the_checks", || {
        for name in ["python_concat", "python_one", "python_percent"] {
            let template = format!("{{% macro {name}(a, b) %}}{{% endmacro %}}");
            assert_refused(&(template.clone() + &repeated("'a'", "{% set ns.x = ns.x + ns.x %}")), BUDGET);
            assert_refused(&(template + &repeated("['a']", "{% set ns.x = [ns.x] %}")), "nest deeper");
        }
    });
}

#[test]
fn long_conversations_are_not_refused() {
    // The template appends every message to one text and one list, and searches the lists.
    let template = "{% set ns = namespace(text='', list=[]) %}{% for m in messages %}\
        {% set ns.text = ns.text + m.content.strip() + '\\n' %}{% set ns.list = ns.list + [m] %}\
        {% if 'x' in m.content.split('</think>')[-1] and ns.list | length == messages | length %}x{% endif %}\
        {% endfor %}{{ ns.text }}";
    let template = load(template).unwrap();
    let messages: Vec<Message> = (0..500).map(|_| Message::new("user", "word ".repeat(200))).collect();
    let text = template.render(&messages, &RenderOptions::default()).unwrap();
    assert_eq!(text.len(), 500 * 1000);
}
