//! Sends requests that try to kill a server. Each must be answered within a memory limit and a deadline, and the server
//! must survive.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};

/// Bytes of private memory that the server may map, including stacks and the KV cache.
const MEMORY: u64 = 3 << 30;
/// Time limit for an answer.
const DEADLINE: Duration = Duration::from_secs(120);

/// A running server. It is killed when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command
            .args(["serve", "--port", "0", "--kv-memory", "16MiB", "--swap-space", "0", "--threads", "2"])
            .args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).env_remove("QUIRE_API_KEY");
        let bound = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
        // SAFETY: `setrlimit` reads `bound`, which the closure owns.
        let limit = move || match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &bound) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: `setrlimit` may be called between fork and exec.
        let mut child = unsafe { command.pre_exec(limit) }.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on http://").unwrap().to_owned();
        let server = Server { child, address };
        while server.post(&json!({"prompt": "Once", "max_tokens": 1})).0 == 503 {
            std::thread::yield_now();
        }
        server
    }

    /// Sends a request without waiting for the answer.
    fn send(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    /// Returns the status and body of the answer to a completion.
    fn post(&self, body: &Value) -> (u16, String) {
        answer(self.send("/v1/completions", body))
    }

    /// Returns the answer to a short completion with these fields.
    fn ask(&self, fields: &Value) -> (u16, String) {
        self.post(&with(fields))
    }

    /// Returns the running child processes of the server.
    fn children(&self) -> Vec<u32> {
        let own = self.child.id().to_string();
        let processes =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_child = |process: &u32| {
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
            let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            let mut words = after.split(' ');
            words.next() != Some("Z") && words.next() == Some(own.as_str())
        };
        processes.filter(is_child).collect()
    }

    /// Waits until the server has this many child processes.
    fn wait_for_children(&self, count: usize) {
        while self.children().len() != count {
            std::thread::yield_now();
        }
    }
}

/// Returns a short completion request with these fields.
fn with(fields: &Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 3});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("there is no answer within the deadline"),
        Err(error) => panic!("the server ended: {error}"),
    }
    let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("the server ended")).parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}

/// Returns a chain of definitions. `link` wraps a reference to the previous one.
fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
    let definition = |at: usize| match at {
        0 => json!({"type": "integer"}),
        _ => link(json!({"$ref": format!("#/$defs/d{}", at - 1)})),
    };
    let definitions: Map<_, _> = (0..length).map(|at| (format!("d{at}"), definition(at))).collect();
    json!({"$defs": definitions, "$ref": format!("#/$defs/d{}", length - 1)})
}

fn required(count: usize) -> Value {
    let names: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
    let properties: Map<_, _> = names.iter().map(|name| (name.clone(), json!({}))).collect();
    json!({"type": "object", "properties": properties, "required": names})
}

fn rules(count: usize) -> String {
    let rules: String = (0..count).map(|at| format!("r{at}: r{}\n", at + 1)).collect();
    format!("start: r0\n{rules}r{count}: \"a\"\n")
}

fn pattern(at: usize) -> Value {
    json!({"type": "string", "pattern": format!(".*a.{{{at}}}b.*")})
}

/// Returns a schema whose cost no check can foresee: one property must match all the patterns. Compiling it takes
/// minutes and gigabytes. Different values of `salt` give different schemas.
fn merged_patterns(count: usize, salt: usize) -> Value {
    let branch = |at: usize| json!({"type": "object", "properties": {"a": pattern(at)}, "required": ["a"]});
    json!({"allOf": (0..count).map(branch).collect::<Vec<_>>(), "title": salt.to_string()})
}

/// Returns a schema of about 1 kB.
fn common() -> Value {
    let field = |at: usize| json!({"type": "string", "description": format!("The value of the field with the number {at}"), "maxLength": 9});
    let fields: Map<_, _> = (0..10).map(|at| (format!("field_{at}"), field(at))).collect();
    json!({"type": "object", "properties": fields, "required": ["field_0", "field_3"], "additionalProperties": false})
}

#[test]
fn grammars_cannot_end_the_server() {
    let server = Server::start(&[]);
    let items = |inner| json!({"type": "array", "items": inner});
    for (fields, expected) in [
        (json!({"guided_grammar": rules(1000)}), None),
        (json!({"guided_grammar": rules(20_000)}), Some("rules")),
        (json!({"guided_json": chain(1000, |inner| inner)}), None),
        (json!({"guided_json": chain(3000, items)}), Some("levels")),
        (json!({"guided_json": chain(3000, |inner| json!({"allOf": [inner]}))}), Some("levels")),
        (json!({"guided_json": chain(3000, |inner| json!({"anyOf": [inner, {"type": "null"}]}))}), Some("levels")),
        (json!({"guided_json": required(15_000)}), Some("names")),
        (json!({"guided_json": required(1000)}), None),
        (json!({"guided_json": {"type": "integer", "multipleOf": 1_000_003}}), Some("multipleOf")),
        (json!({"guided_json": {"allOf": (0..20).map(pattern).collect::<Vec<_>>()}}), Some("patterns")),
        (json!({"guided_regex": "(a|b)?".repeat(20_000)}), Some("regular expression")),
        (json!({"guided_json": merged_patterns(20, 0)}), Some("to compile")),
        // The server remembers the reason.
        (json!({"guided_json": merged_patterns(20, 0)}), Some("to compile")),
    ] {
        let shown = fields.to_string().chars().take(100).collect::<String>();
        let (status, body) = server.ask(&fields);
        match expected {
            None => assert_eq!(status, 200, "{shown}: {body}"),
            Some(why) => assert!(status == 400 && body.contains(why), "{shown}: {status} {body}"),
        }
        assert_eq!(server.ask(&json!({"guided_json": common()})).0, 200, "after {shown}");
    }
    assert!(server.children().is_empty());
}

#[test]
fn tools_cannot_end_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let template = directory.path().join("template.jinja");
    let text = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}\
                {% for message in messages %}{{ message.content }}{% endfor %}<tool_call>";
    std::fs::write(&template, text).unwrap();
    let server = Server::start(&["--chat-template", template.to_str().unwrap(), "--tool-call-parser", "hermes"]);
    let ask = |parameters: Value| {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let messages = [json!({"role": "user", "content": "Once"})];
        let body = json!({"messages": messages, "tools": [tool], "tool_choice": "required", "max_tokens": 3});
        answer(server.send("/v1/chat/completions", &body))
    };
    let items = |inner| json!({"type": "array", "items": inner});
    for (parameters, expected) in
        [(chain(3000, items), "levels"), (required(15_000), "names"), (merged_patterns(20, 0), "to compile")]
    {
        let (status, body) = ask(parameters);
        assert!(status == 400 && body.contains(expected), "{expected}: {status} {body}");
    }
    assert_eq!(ask(common()).0, 200);
}

#[test]
fn options_limit_a_compilation() {
    let hurried = Server::start(&["--grammar-timeout", "0.001"]);
    let (status, body) = hurried.ask(&json!({"guided_json": merged_patterns(12, 0)}));
    assert!(status == 400 && body.contains("more than 0.001 s"), "{status} {body}");
    drop(hurried);
    let tight = Server::start(&["--grammar-timeout", "100", "--grammar-memory", "16MiB"]);
    let (status, body) = tight.ask(&json!({"guided_json": merged_patterns(20, 0)}));
    assert!(status == 400 && body.contains("more than 16 MiB"), "{status} {body}");
    // A heavy grammar within the bounds.
    let both = json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 2});
    assert_eq!(tight.ask(&json!({"guided_json": both})).0, 200);
}

#[test]
fn hostile_grammars_delay_no_others_and_end_with_their_clients() {
    // Each compilation would take longer than the deadline of an answer.
    let server = Server::start(&["--grammar-timeout", "600", "--grammar-memory", "600MiB"]);
    let running = with(&json!({"guided_json": required(500), "max_tokens": 400, "stream": true}));
    let mut running = server.send("/v1/completions", &running);
    running.read_exact(&mut [0; 12]).unwrap();
    let hostile: Vec<TcpStream> = (0..4)
        .map(|salt| server.send("/v1/completions", &with(&json!({"guided_json": merged_patterns(20, salt)}))))
        .collect();
    server.wait_for_children(4);
    // A light grammar, and the grammar of a running request.
    assert_eq!(server.ask(&json!({"guided_json": common()})).0, 200);
    assert_eq!(server.ask(&json!({"guided_json": required(500)})).0, 200);
    drop(hostile);
    server.wait_for_children(0);
    let both = json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 2});
    assert_eq!(server.ask(&json!({"guided_json": both})).0, 200);
}
