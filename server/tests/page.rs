//! Checks that the page at `/` needs only this server's files. `tests/python/page.py` tests it in a browser.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::collections::BTreeMap;

use common::{TestServer, error_of};
use server::ServeOptions;

/// The namespace of SVG. Browsers do not request it.
const SVG: &str = "http://www.w3.org/2000/svg";
/// The links on the page.
const LINKS: [&str; 2] = ["/metrics", "/openapi.json"];

/// Returns the quoted addresses that follow `marker` in `text`.
fn addresses<'a>(text: &'a str, marker: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(marker).skip(1).map(|rest| rest.split('"').next().unwrap())
}

/// Returns all files that `/` leads to, by their addresses.
async fn files(server: &TestServer) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut open = vec!["/".to_owned()];
    while let Some(address) = open.pop() {
        let response = server.get(&address).await;
        assert_eq!(response.status(), 200, "{address}");
        let headers = response.headers();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-cache");
        let kind = match address.rsplit_once('.') {
            None => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            Some(_) => "text/javascript; charset=utf-8",
        };
        assert_eq!(headers["content-type"], kind, "{address}");
        let text = response.text().await.unwrap();
        let local = ["src=\"", "href=\""].into_iter().flat_map(|m| addresses(&text, m)).map(str::to_owned);
        let modules = addresses(&text, " from \"").map(|m| format!("/page/{}", m.strip_prefix("./").unwrap()));
        let found: Vec<String> = local.filter(|a| !LINKS.contains(&a.as_str())).chain(modules).collect();
        files.insert(address, text.replace(SVG, ""));
        open.extend(found.into_iter().filter(|a| !files.contains_key(a)));
    }
    files
}

#[tokio::test]
async fn the_page_needs_only_this_servers_files() {
    // A browser without a key can load the page, which then asks for the key.
    let options = ServeOptions { api_key: Some("a secret".into()), ..ServeOptions::default() };
    let server = TestServer::with_options(options).await;
    let files = files(&server).await;
    for name in ["style.css", "parts.css", "favicon.svg", "state.js"] {
        assert!(files.contains_key(&format!("/page/{name}")), "{name} is not among {:?}", files.keys());
    }
    for (address, text) in &files {
        assert!(address == "/" || address.starts_with("/page/"), "{address}");
        for foreign in ["://", "url(", "@import", "import("] {
            assert!(!text.contains(foreign), "{address} has {foreign}");
        }
        // Prompts and answers are inserted as text, never as markup.
        for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(markup), "{address} has {markup}");
        }
    }
    for link in LINKS {
        assert!(files["/"].contains(&format!("href=\"{link}\"")), "{link}");
        assert_eq!(server.get(link).await.status(), 200, "{link}");
    }
    for address in ["/page/", "/page/none.js", "/page/../Cargo.toml", "/page/%2e%2e%2fCargo.toml"] {
        error_of(server.get(address).await, 404).await;
    }
    server.stop().await.unwrap();
}
