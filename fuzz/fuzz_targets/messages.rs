//! Fuzzes the bodies of `/v1/messages` with a whole server. The first byte chooses the path and the headers.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use engine::tools::answer::ToolFormat;
use engine::{ModelFiles, Options};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use libfuzzer_sys::fuzz_target;
use server::{RequestLimits, ServeOptions, Server};
use tokio::runtime::Runtime;

const PATHS: [&str; 2] = ["/v1/messages", "/v1/messages/count_tokens"];
const TEMPLATE: &str = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}\
    {{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>\
    {% endfor %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}\n{% endfor %}";

/// A server with its clients.
struct Running {
    runtime: Runtime,
    client: Client<HttpConnector, Full<Bytes>>,
    address: String,
}

static RUNNING: LazyLock<Running> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    let options = ServeOptions {
        port: 0,
        chat_template: Some(TEMPLATE.into()),
        tool_call_parser: Some(ToolFormat::Hermes),
        limits: RequestLimits { request_timeout: Duration::from_secs(2), ..RequestLimits::default() },
        ..ServeOptions::default()
    };
    let server = runtime.block_on(async {
        let (files, engine) = (ModelFiles::bundled(), Options::default());
        let server = Server::bind(&files, &engine, &options).await.expect("a port is free");
        server.loaded().await.expect("the bundled model can be loaded");
        server
    });
    let address = server.addresses().expect("the server listens")[0].to_string();
    runtime.spawn(server.run(std::future::pending()));
    let client = Client::builder(TokioExecutor::new()).build_http();
    Running { runtime, client, address }
});

fuzz_target!(|data: &[u8]| {
    let Some((form, body)) = data.split_first() else { return };
    let Running { runtime, client, address } = &*RUNNING;
    let path = PATHS[usize::from(form & 1)];
    let mut request = Request::post(format!("http://{address}{path}")).header("content-type", "application/json");
    if form & 2 != 0 {
        request = request.header("anthropic-beta", "any");
    }
    let request = request.body(Full::new(Bytes::copy_from_slice(body))).expect("the head is well formed");
    let (status, text) = runtime.block_on(async {
        let response = client.request(request).await.expect("the server answers");
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.expect("the answer ends").to_bytes())
    });
    // A slow answer is no error.
    let is_expected = matches!(status, 200 | 504) || (400..500).contains(&status);
    assert!(is_expected, "{status}: {}", String::from_utf8_lossy(&text));
    if status != 200 {
        let error: serde_json::Value = serde_json::from_slice(&text).expect("an error is JSON");
        assert_eq!(error["type"], "error", "{error}");
    }
});
