//! The server's log at the default level.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::io;
use std::sync::Mutex;

use common::TestServer;
use server::ServeOptions;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Writes to [`LOG`].
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The page and Prometheus poll several times a second, which would hide other requests in the log.
#[tokio::test]
async fn polling_is_not_logged_unless_it_is_refused() {
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
    // The server runs on this thread too.
    let _guard = tracing::subscriber::set_default(subscriber);
    let options = ServeOptions { api_key: Some("secret".into()), ..ServeOptions::default() };
    let server = TestServer::with_options(options).await;
    for path in ["/version", "/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path).await.status(), 200, "{path}");
    }
    let with_key = server.client.get(server.url("/debug/state")).bearer_auth("secret");
    assert_eq!(with_key.send().await.unwrap().status(), 200);
    assert_eq!(server.get("/debug/state").await.status(), 401);
    let log = String::from_utf8(std::mem::take(&mut LOG.lock().unwrap())).unwrap();
    let requests: Vec<&str> = log.lines().filter(|line| line.contains("method=GET")).collect();
    assert_eq!(requests.len(), 2, "{log}");
    assert!(requests[0].contains(r#"path="/version" status=200"#), "{log}");
    assert!(requests[1].contains(r#"path="/debug/state" status=401"#), "{log}");
    server.stop().await.unwrap();
}
