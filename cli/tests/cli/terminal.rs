//! Output and Ctrl-C on a terminal.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::support::{copy_of, edit, model};

/// Starts a command on its own terminal, which `script` provides.
fn start_on_terminal(words: &[&str], environment: &[(&str, &str)]) -> Child {
    let quoted = |word: &&str| format!(" '{}'", word.replace('\'', r"'\''"));
    let call = format!("stty cols 100 rows 24; exec \"$QUIRE\"{}", words.iter().map(quoted).collect::<String>());
    let mut script = Command::new("script");
    if cfg!(target_os = "linux") {
        script.args(["-qec", &call, "/dev/null"]);
    } else {
        script.args(["-q", "/dev/null", "sh", "-c", &call]);
    }
    script.env("QUIRE", env!("CARGO_BIN_EXE_quire")).env("TERM", "xterm").env("SHELL", "/bin/sh");
    script.envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
    script.spawn().expect("the command `script` is part of every system with terminals")
}

/// Runs a command on its own terminal. Returns the text on the screen and the exit status.
fn on_terminal(words: &[&str], environment: &[(&str, &str)]) -> (String, Option<i32>) {
    let mut child = start_on_terminal(words, environment);
    let mut screen = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut screen).unwrap();
    // Standard input stays open until now, because its end would be typed into the terminal.
    (String::from_utf8_lossy(&screen).into_owned(), child.wait().unwrap().code())
}

fn quire(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(words);
    command
}

#[test]
fn the_command_without_arguments_makes_suggestions() {
    let (screen, status) = on_terminal(&[], &[]);
    assert_eq!(status, Some(0), "{screen}");
    let tries: Vec<&str> = screen.lines().filter_map(|line| line.strip_prefix("  quire ")).collect();
    assert_eq!(tries.len(), 3, "{screen}");
    assert!(screen.starts_with("Quire ") && screen.contains("quire --help"), "{screen}");
    // The first suggestion works.
    let (story, status) = on_terminal(&["-p", "Once upon a time", "-n", "4"], &[]);
    assert!(status == Some(0) && tries[0].starts_with("-p \"Once upon a time\""), "{screen}");
    assert_eq!(story, "Once upon a time, there lived a\r\n");
}

#[test]
fn no_prompt_is_read_from_a_terminal() {
    let (screen, status) = on_terminal(&["--json"], &[]);
    assert_eq!(status, Some(2), "{screen}");
    assert!(screen.starts_with("error: nothing to continue"), "{screen}");
}

/// Returns a model with 75 MB of zero weights in a sparse file, which takes almost no space on disk.
fn large_model() -> tempfile::TempDir {
    let dir = copy_of("llama2");
    for entry in fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().contains("safetensors") {
            fs::remove_file(path).unwrap();
        }
    }
    let config: serde_json::Value = serde_json::from_slice(&fs::read(dir.path().join("config.json")).unwrap()).unwrap();
    let number = |name: &str| config[name].as_u64().unwrap();
    let (hidden, vocab, inner) = (number("hidden_size"), number("vocab_size"), 32768);
    edit(
        &dir,
        "config.json",
        &format!("\"intermediate_size\": {}", number("intermediate_size")),
        "\"intermediate_size\": 32768",
    );
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut tensor = |name: String, shape: &[u64]| {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        header.insert(name, serde_json::json!({"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}));
    };
    tensor("model.embed_tokens.weight".into(), &[vocab, hidden]);
    tensor("lm_head.weight".into(), &[vocab, hidden]);
    tensor("model.norm.weight".into(), &[hidden]);
    let size = hidden / number("num_attention_heads");
    let kv = size * config["num_key_value_heads"].as_u64().unwrap_or(number("num_attention_heads"));
    for layer in 0..number("num_hidden_layers") {
        let mut part = |name: &str, shape: &[u64]| tensor(format!("model.layers.{layer}.{name}.weight"), shape);
        part("input_layernorm", &[hidden]);
        part("post_attention_layernorm", &[hidden]);
        part("self_attn.q_proj", &[hidden, hidden]);
        part("self_attn.k_proj", &[kv, hidden]);
        part("self_attn.v_proj", &[kv, hidden]);
        part("self_attn.o_proj", &[hidden, hidden]);
        part("mlp.gate_proj", &[inner, hidden]);
        part("mlp.up_proj", &[inner, hidden]);
        part("mlp.down_proj", &[hidden, inner]);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = File::create(dir.path().join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    dir
}

#[test]
fn only_large_models_show_progress() {
    let large = large_model();
    let words = [model(&large), "--prompt-ids", "5,6", "-n", "1", "--temperature", "0"];
    let bench = ["bench", "throughput", model(&large), "--lengths=4,1", "--requests=1"];
    for words in [&words[..], &bench] {
        let (screen, status) = on_terminal(words, &[]);
        assert_eq!(status, Some(0), "{screen}");
        assert!(screen.contains("loading ") && screen.contains(" MiB"), "{screen:?}");
    }
    // Without a terminal nothing is shown.
    let output = quire(&words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Starts a hub that has one model's config.json, and a file of weights of another model that never arrives completely.
fn hub() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut request = String::new();
            let _ = reader.read_line(&mut request);
            while reader.by_ref().lines().next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = if request.contains("/api/") {
                "{\"sha\": \"0123456789abcdef0123456789abcdef01234567\", \"siblings\": [{\"rfilename\": \"config.json\"}]}"
            } else {
                "{\"architectures\": [\"NothingThatIsKnown\"], \"model_type\": \"nothing\"}"
            };
            let length = body.len();
            let range = if request.contains("/api/") {
                String::new()
            } else {
                format!("Content-Range: bytes 0-{}/{length}\r\n", length - 1)
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{range}ETag: \"config\"\r\n\
                 X-Repo-Commit: 0123456789abcdef0123456789abcdef01234567\r\nConnection: close\r\n\r\n"
            );
            let _ = reader.get_mut().write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

#[test]
fn downloads_show_progress() {
    let home = tempfile::tempdir().unwrap();
    let (cache, hub) = (home.path().to_str().unwrap(), hub());
    let mut environment =
        vec![("HF_HOME", cache), ("HF_HUB_CACHE", cache), ("HF_ENDPOINT", &hub), ("HF_HUB_OFFLINE", "")];
    let proxies = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    environment.extend(proxies.map(|proxy| (proxy, "")));
    let (screen, status) = on_terminal(&["someone/tiny", "-p", "a"], &environment);
    assert!(screen.contains("config.json") && screen.contains("[00:00"), "{screen:?}");
    assert_eq!(status, Some(1), "{screen}");
    assert!(screen.contains("error: unsupported model: "), "{screen}");
}

/// Starts a command whose output is too long for the pipe, so that it waits for its reader. Returns it and the first
/// line.
fn started(more: &[&str]) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut words = vec!["--max-num-seqs=2", "--ignore-eos", "-n40", "--logprobs=20"];
    words.extend(["--prompt-ids=5,6,7"; 60]);
    words.extend(more);
    let mut child = quire(&words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::with_capacity(1024, child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line)
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn an_interrupted_run_prints_its_partial_output() {
    let (mut child, out, first) = started(&["--json"]);
    interrupt(&child);
    let lines: Vec<String> = [first].into_iter().chain(out.lines().map(Result::unwrap)).collect();
    let reasons: Vec<String> = lines
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["outputs"][0]["finish_reason"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!((reasons.len(), reasons[0].as_str(), reasons[59].as_str()), (60, "length", "abort"));
    let mut message = String::new();
    child.stderr.unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(message, "");

    // In text output, requests that had not started are omitted.
    let (mut child, out, first) = started(&[]);
    interrupt(&child);
    let labels = out.lines().filter(|line| line.as_ref().unwrap().starts_with('[')).count();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(first.starts_with("[1] ") && (1..59).contains(&labels), "{labels}");
}

#[test]
fn a_second_interrupt_ends_at_once() {
    // The output is not read, so the process cannot end by itself.
    let (mut child, _out, _) = started(&["--json"]);
    let status = loop {
        interrupt(&child);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(130));
}

/// Types lines into a chat, each after its prompt or question. Returns the text on the screen and the exit status.
fn type_into_chat(words: &[&str], typed: &[&str]) -> (String, Option<i32>) {
    let mut child = start_on_terminal(words, &[]);
    let (mut screen, mut keys) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut seen = Vec::new();
    for line in typed {
        // When the line editor starts, it asks the terminal to mark pasted text.
        let from = seen.len();
        while !seen[from..].ends_with(b"\x1b[?2004h") {
            let mut byte = [0];
            screen.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        keys.write_all(line.as_bytes()).unwrap();
    }
    screen.read_to_end(&mut seen).unwrap();
    (String::from_utf8_lossy(&seen).into_owned(), child.wait().unwrap().code())
}

/// Lines can be edited and recalled from the history, and Ctrl-C discards a line.
#[test]
fn entries_of_a_chat_can_be_edited() {
    let dir = copy_of("gpt2");
    fs::write(dir.path().join("chat_template.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let file = dir.path().join("messages.json");
    let words = ["chat", model(&dir), "--temperature=0", "-n1"];
    // One line has a correction, one is discarded, and one extends the first from the history.
    let save = format!("/save {}\r", file.display());
    let (screen, status) = type_into_chat(&words, &["Hx\x7fi\r", "nonsense\x03", "\x1b[A!\r", &save, "\x04"]);
    assert_eq!(status, Some(0), "{screen}");
    let messages: Vec<serde_json::Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let users = messages.iter().filter(|message| message["role"] == "user").map(|message| &message["content"]);
    assert_eq!(users.collect::<Vec<_>>(), ["Hi", "Hi!"]);
}

#[test]
fn commands_of_a_chat_are_completed_and_confirmed() {
    let dir = copy_of("gpt2");
    fs::write(dir.path().join("chat_template.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let file = dir.path().join("messages.json");
    fs::write(&file, "mine").unwrap();
    let save = format!("/sa\t{}\r", file.display());
    // The first answer keeps the file, the second overwrites it. Tab completes /save and /quit.
    let words = ["chat", model(&dir), "--temperature=0", "-n1"];
    let (screen, status) = type_into_chat(&words, &["Hi\r", &save, "\r", "/q\t\r"]);
    assert_eq!((status, fs::read_to_string(&file).unwrap().as_str()), (Some(0), "mine"), "{screen}");
    assert!(screen.contains("Overwrite it? [y/N]"), "{screen}");
    let (screen, status) = type_into_chat(&words, &["Hi\r", &save, "y\r", "/q\t\r"]);
    assert_eq!(status, Some(0), "{screen}");
    assert!(fs::read_to_string(&file).unwrap().contains("\"Hi\""), "{screen}");
}

#[test]
fn answers_break_between_words() {
    let words = ["chat", "--temperature=0", "-n120"];
    let (screen, status) = type_into_chat(&words, &["Once upon a time\r", "\x04"]);
    assert_eq!(status, Some(0), "{screen}");
    let end = screen.find("\n[120 tokens").or_else(|| screen.find(" tokens, ")).unwrap();
    let answer = &screen[..end];
    let lines: Vec<&str> = answer.lines().filter(|line| line.len() > 80 && !line.contains('\x1b')).collect();
    assert!(lines.len() >= 2, "{screen}");
    for line in lines {
        assert!(line.len() <= 100, "{line:?} is longer than the terminal's 100 columns");
    }
}
