//! Waits for a request to end the process.

use std::future::Future;
use std::{io, process};

use anyhow::Result;

use crate::interrupt::{STATUS, ctrl_c};

/// Returns a future that completes when the process is asked to end, by Ctrl-C or by the system (see [`Requests`]).
/// After that, Ctrl-C ends the process at once.
///
/// # Errors
/// If the process cannot listen for signals.
pub fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut requests = Requests::listen()?;
    let mut interrupt = ctrl_c()?;
    Ok(async move {
        tokio::select! {
            () = requests.received() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            interrupt.recv().await;
            process::exit(STATUS.into());
        });
    })
}

/// The system's requests to end: SIGTERM, and SIGHUP when the terminal closes. SIGHUP is left alone if it is ignored,
/// as under nohup.
#[cfg(unix)]
struct Requests {
    terminate: tokio::signal::unix::Signal,
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Requests {
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let hangup = (!crate::sigaction::ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Requests { terminate: signal(SignalKind::terminate())?, hangup })
    }

    async fn received(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            () = hangup => {}
        }
    }
}

/// The system's requests to end: Ctrl-Break, a closed console, and a shutdown.
#[cfg(windows)]
struct Requests {
    ctrl_break: tokio::signal::windows::CtrlBreak,
    close: tokio::signal::windows::CtrlClose,
    shutdown: tokio::signal::windows::CtrlShutdown,
}

#[cfg(windows)]
impl Requests {
    fn listen() -> io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_close, ctrl_shutdown};

        Ok(Requests { ctrl_break: ctrl_break()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.ctrl_break.recv() => {}
            _ = self.close.recv() => {}
            _ = self.shutdown.recv() => {}
        }
    }
}
