//! What the process does when it is told to end.

use std::future::Future;
use std::process;

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::interrupt::STATUS;
use crate::sigaction::ignores_hangup;

/// Ready when the process is asked to end: by SIGTERM, by Ctrl-C, or by SIGHUP, as when its terminal is closed, unless
/// that is ignored, as under nohup. From then on Ctrl-C ends the process at once.
///
/// # Errors
/// If signals cannot be waited for.
pub fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = received(hangup.as_mut()) => {}
        }
        tokio::spawn(async move {
            interrupt.recv().await;
            process::exit(STATUS.into());
        });
    })
}

/// Waits for a signal; for ever without one.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
