//! The server's listening sockets and their incoming connections.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::time::Instant;

/// The delay before the next attempt when a connection cannot be accepted, for example because no file descriptor is
/// free.
const RETRY: Duration = Duration::from_millis(50);
/// The minimum time between two log entries about failures to accept connections.
const REPORT: Duration = Duration::from_secs(1);
/// Attempts to find a port that is free on all addresses of a name.
const FREE_PORTS: usize = 16;

/// Sockets on all addresses of one name, on the same port.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<TcpListener>,
    failures: Failures,
}

/// Failures to accept a connection.
#[derive(Debug, Default)]
struct Failures {
    reported: Option<Instant>,
    unreported: usize,
}

impl Listeners {
    /// Listens on every address of `host`, which is a name or an address (with or without brackets). `localhost` always
    /// means both 127.0.0.1 and ::1, whatever the system's files say. Addresses that the machine does not have are
    /// skipped unless none is left. Port 0 selects a free port.
    ///
    /// # Errors
    /// If the name has no address or the server cannot listen on an address.
    pub async fn bind(host: &str, port: u16) -> Result<Self> {
        let addresses = resolve(host).await.with_context(|| format!("cannot listen at {host}:{port}"))?;
        let mut attempts = if port == 0 { FREE_PORTS } else { 1 };
        let all = loop {
            attempts -= 1;
            match bind_all(&addresses, port).await {
                // A port that was free on one address may be taken on another.
                Err(error) if error.kind() == ErrorKind::AddrInUse && attempts > 0 => {}
                bound => break bound.with_context(|| format!("cannot listen at {host}:{port}"))?,
            }
        };
        Ok(Listeners { all, failures: Failures::default() })
    }

    /// Returns the addresses on which it listens, at least one.
    ///
    /// # Errors
    /// If the system does not report an address.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.all.iter().map(TcpListener::local_addr).collect()
    }

    /// Waits for the next connection. If one cannot be accepted, logs that at most once a second and tries again after
    /// a pause.
    pub async fn accept(&mut self) -> TcpStream {
        loop {
            let accepted = poll_fn(|cx| {
                let ready = self.all.iter().find_map(|listener| match listener.poll_accept(cx) {
                    Poll::Ready(accepted) => Some(accepted),
                    Poll::Pending => None,
                });
                ready.map_or(Poll::Pending, Poll::Ready)
            });
            match accepted.await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    if let Some(times) = self.failures.report(Instant::now()) {
                        tracing::warn!(%error, times, "a connection could not be accepted");
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

async fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let mut addresses: Vec<IpAddr> = lookup_host((host, 0)).await?.map(|address| address.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

async fn bind_all(addresses: &[IpAddr], mut port: u16) -> io::Result<Vec<TcpListener>> {
    let mut all = Vec::with_capacity(addresses.len());
    let mut missing = io::Error::new(ErrorKind::AddrNotAvailable, "the name has no address");
    for &address in addresses {
        match TcpListener::bind((address, port)).await {
            Ok(listener) => {
                port = listener.local_addr()?.port();
                all.push(listener);
            }
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                return Err(error);
            }
            // A machine without IPv6 reports one of several errors.
            Err(error) => missing = error,
        }
    }
    if all.is_empty() { Err(missing) } else { Ok(all) }
}

impl Failures {
    /// Counts a failure at `now`. If it is time to report, returns the number of failures since the last report.
    fn report(&mut self, now: Instant) -> Option<usize> {
        self.unreported += 1;
        if self.reported.is_some_and(|last| now < last + REPORT) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn failures_are_reported_once_a_second() {
        let mut failures = Failures::default();
        let start = Instant::now();
        let reports: Vec<_> = (0..100).map(|i| failures.report(start + 30 * Duration::from_millis(i))).collect();
        assert_eq!(reports.iter().flatten().collect::<Vec<_>>(), [&1, &34, &34]);
        assert!(reports[0].is_some() && reports[34].is_some() && reports[68].is_some());
    }

    #[tokio::test]
    async fn brackets_around_an_address_are_ignored() {
        for host in ["::1", "[::1]"] {
            assert_eq!(resolve(host).await.unwrap(), [Ipv6Addr::LOCALHOST], "{host}");
        }
        assert_eq!(resolve("127.0.0.1").await.unwrap(), [Ipv4Addr::LOCALHOST]);
        assert!(resolve("[127.0.0.1").await.is_err());
    }

    #[tokio::test]
    async fn localhost_is_both_families_on_one_port() {
        let listeners = Listeners::bind("LocalHost", 0).await.unwrap();
        let addresses = listeners.addresses().unwrap();
        let mut expected: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
        // A machine without IPv6 listens on the IPv4 address only.
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            expected.push(Ipv6Addr::LOCALHOST.into());
        }
        assert_eq!(addresses.iter().map(SocketAddr::ip).collect::<Vec<_>>(), expected);
        assert!(addresses.iter().all(|address| address.port() == addresses[0].port()));
        // The port is taken on both addresses.
        for address in addresses {
            let error = Listeners::bind("localhost", address.port()).await.unwrap_err();
            assert!(format!("{error:#}").contains("cannot listen at localhost:"), "{error:#}");
        }
    }
}
