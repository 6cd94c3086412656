//! A server with scripted answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadgen::endpoint::{Endpoint, EndpointOptions};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

/// Its models. A client should take the first.
const MODELS: &str = r#"{"object":"list","data":[{"id":"first","max_model_len":300},{"id":"second"}]}"#;

/// Returns the pieces of the answer to a completion, by the completion's number. The server writes them one by one and
/// closes the connection.
pub type Script = fn(usize) -> Vec<&'static [u8]>;

#[derive(Default)]
pub struct Seen {
    /// Bodies of completions, in order of arrival.
    pub bodies: Vec<Value>,
    /// Heads of all requests.
    pub heads: Vec<String>,
    in_progress: usize,
    /// Most completions in progress at a time.
    pub most: usize,
}

pub struct Mock {
    pub address: SocketAddr,
    pub seen: Arc<Mutex<Seen>>,
}

impl Mock {
    /// Starts a server that answers completions by `script`, which gets the number of each. Answers wait until
    /// `together` requests have arrived.
    pub async fn start(together: usize, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (shared, barrier) = (seen.clone(), Arc::new(Barrier::new(together)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, shared.clone(), barrier.clone(), script));
            }
        });
        Mock { address, seen }
    }

    pub fn options(&self) -> EndpointOptions {
        EndpointOptions {
            url: format!("http://{}", self.address),
            model: None,
            api_key: None,
            timeout: Duration::from_secs(100),
            ignore_eos: true,
            fields: serde_json::Map::new(),
        }
    }

    pub async fn endpoint(&self) -> Endpoint {
        Endpoint::connect(self.options()).await.unwrap()
    }
}

async fn answer(stream: TcpStream, seen: Arc<Mutex<Seen>>, barrier: Arc<Barrier>, script: Script) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap() == 0 {
            return;
        }
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    let is_completion = head.starts_with("post /v1/completions ");
    seen.lock().unwrap().heads.push(head);
    if !is_completion {
        let response =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{MODELS}", MODELS.len());
        return stream.write_all(response.as_bytes()).await.unwrap();
    }
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.bodies.push(serde_json::from_slice(&body).unwrap());
        seen.in_progress += 1;
        seen.most = seen.most.max(seen.in_progress);
        seen.bodies.len() - 1
    };
    barrier.wait().await;
    seen.lock().unwrap().in_progress -= 1;
    for piece in script(number) {
        // A client that has read enough may have disconnected.
        if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}
