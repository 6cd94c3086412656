//! How the sockets of KV events listen.

use anyhow::{Context, Result};
use zeromq::{Endpoint, Socket};

/// Listens at an endpoint such as `tcp://*:5557`; returns it with the port that it got.
pub async fn listen(socket: &mut impl Socket, endpoint: &str) -> Result<String> {
    let why = || format!("cannot publish KV events at {endpoint}");
    // All addresses of the machine, in ZeroMQ's way.
    let address = endpoint.replacen("://*:", "://0.0.0.0:", 1);
    match address.parse::<Endpoint>().with_context(why)? {
        Endpoint::Tcp(..) => Ok(socket.bind(&address).await.with_context(why)?.to_string()),
        _ => anyhow::bail!("{}: an endpoint must begin with tcp://", why()),
    }
}
