//! Opens the listening sockets of KV events.

use anyhow::{Context, Result};
use zeromq::{Endpoint, Socket};

/// Listens on an endpoint such as `tcp://*:5557`. Returns the endpoint with its actual port.
pub async fn listen(socket: &mut impl Socket, endpoint: &str) -> Result<String> {
    let why = || format!("cannot publish KV events at {endpoint}");
    // In ZeroMQ, `*` means all addresses of the machine.
    let address = endpoint.replacen("://*:", "://0.0.0.0:", 1);
    match address.parse::<Endpoint>().with_context(why)? {
        Endpoint::Tcp(..) => Ok(socket.bind(&address).await.with_context(why)?.to_string()),
        _ => anyhow::bail!("{}: an endpoint must begin with tcp://", why()),
    }
}
