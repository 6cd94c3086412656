//! Starts a server to test, on a free port of this machine.

#![allow(dead_code)] // not every test uses all of it

pub mod client;
pub mod poisoned;

use std::io::ErrorKind;
use std::net::SocketAddr;

use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Completion, Llm, Options, Prompt};
use serde_json::Value;
use server::{ServeOptions, Server};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::client::{Client, Response};

/// The name of the bundled model.
pub const MODEL: &str = "opt-story-3m";
/// A prompt that the model continues with a long story.
pub const PROMPT: &str = "Once upon a time";

/// A running server.
pub struct TestServer {
    pub address: SocketAddr,
    pub client: Client,
    stop: oneshot::Sender<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl TestServer {
    /// Starts a server with the bundled model and default options.
    pub async fn start() -> Self {
        Self::with(&ModelFiles::bundled(), &Options::default(), ServeOptions::default()).await
    }

    /// Starts a server with the bundled model.
    pub async fn with_options(options: ServeOptions) -> Self {
        Self::with(&ModelFiles::bundled(), &Options::default(), options).await
    }

    /// Starts a server with any model. Returns when the model is loaded.
    pub async fn with(files: &ModelFiles, engine: &Options, options: ServeOptions) -> Self {
        let options = ServeOptions { port: 0, ..options };
        let server = Server::bind(files, engine, &options).await.unwrap();
        server.loaded().await.unwrap();
        Self::run(server)
    }

    /// Like [`TestServer::with`]. Also returns the endpoints for KV events and for their replay.
    pub async fn publishing(files: &ModelFiles, engine: &Options, options: ServeOptions) -> (Self, String, String) {
        let options = ServeOptions { port: 0, ..options };
        let server = Server::bind(files, engine, &options).await.unwrap();
        server.loaded().await.unwrap();
        let (events, replay) = server.kv_events();
        let (events, replay) = (events.unwrap().to_owned(), replay.unwrap().to_owned());
        (Self::run(server), events, replay)
    }

    /// Like [`TestServer::with`], but does not wait for the model.
    pub async fn loading(files: &ModelFiles, engine: &Options, options: ServeOptions) -> Self {
        let options = ServeOptions { port: 0, ..options };
        Self::run(Server::bind(files, engine, &options).await.unwrap())
    }

    fn run(server: Server) -> Self {
        let address = server.addresses().unwrap()[0];
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        // The client keeps one connection, so tests can count connections.
        TestServer { address, client: Client::new(), stop, task }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends JSON and waits for the head of the response.
    pub async fn send(&self, path: &str, body: &Value) -> Response {
        self.client.post(self.url(path)).json(body).send().await.unwrap()
    }

    /// Sends JSON with `stream` and returns the events of the answer. Each must have its type as its name.
    pub async fn named_events(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.send(path, &body).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &"text/event-stream".parse().unwrap())
        );
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
            data
        };
        response.text().await.unwrap().split_terminator("\n\n").map(event).collect()
    }

    /// Sends JSON and returns the JSON answer, which must have status 200.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let response = self.send(path, body).await;
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert_eq!(status, 200, "{body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Sends JSON that must be refused with `status`. Returns the error.
    pub async fn refused(&self, path: &str, body: &Value, status: u16) -> Value {
        error_of(self.send(path, body).await, status).await
    }

    /// Returns the events of a stream up to `[DONE]`, which must be present.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.send(path, body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = response.text().await.unwrap();
        let mut events: Vec<&str> = text.split_terminator("\n\n").map(|e| e.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.into_iter().map(|e| serde_json::from_str(e).unwrap()).collect()
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    pub async fn get_json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200);
        response.json().await.unwrap()
    }

    /// Returns the value of a metric without labels of its own.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text().await.unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).1.parse().unwrap()
    }

    /// Polls a metric until it is `value`.
    pub async fn wait_for_metric(&self, name: &str, value: f64) {
        while self.metric(name).await != value {
            tokio::task::yield_now().await;
        }
    }

    /// Checks that no request is left and that the server still answers.
    pub async fn assert_unharmed(&self) {
        self.wait_for_metric("vllm:num_requests_running", 0.0).await;
        self.wait_for_metric("vllm:num_requests_waiting", 0.0).await;
        self.wait_for_metric("quire:kv_blocks_used", 0.0).await;
        self.wait_for_metric("quire:http_requests", 0.0).await;
        let body = serde_json::json!({"prompt": PROMPT, "max_tokens": 5, "temperature": 0});
        assert_eq!(self.post("/v1/completions", &body).await["choices"][0]["text"], ", there lived a young");
    }

    /// Sends raw bytes and returns everything that the server sends until it closes the connection.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let stream = TcpStream::connect(self.address).await.unwrap();
        write_all(&stream, bytes).await;
        read_all(&stream).await
    }

    /// Tells the server to stop, and waits until it has.
    pub async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.task.await.unwrap()
    }
}

/// Returns the bytes received until the connection ends or breaks.
pub async fn read_all(stream: &TcpStream) -> String {
    let mut all = Vec::new();
    let mut part = [0; 4096];
    loop {
        stream.readable().await.unwrap();
        match stream.try_read(&mut part) {
            Ok(n @ 1..) => all.extend_from_slice(&part[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return String::from_utf8_lossy(&all).into_owned(),
        }
    }
}

/// Sends `bytes`, or as many as the server accepts.
pub async fn write_all(stream: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        stream.writable().await.unwrap();
        match stream.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Returns the error in a response with this status. It must have all of OpenAI's fields.
pub async fn error_of(response: Response, status: u16) -> Value {
    let (got, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(got, status, "{text}");
    let mut body: Value = serde_json::from_str(&text).unwrap();
    let error = body["error"].take();
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{text}");
    assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{text}");
    error
}

/// Returns the engine's own output for a prompt, without a server.
pub fn alone(files: &ModelFiles, prompt: &str, params: &SamplingParams) -> Completion {
    let mut llm = Llm::load(files, &Options::default()).unwrap();
    llm.generate(&[Prompt::Text(prompt.into())], params).unwrap().remove(0)
}
