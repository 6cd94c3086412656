//! Handles Ctrl-C during generation. The first one stops generation in an orderly way. A second one before the first is
//! handled ends the process.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io, thread};

use anyhow::Result;

#[cfg(unix)]
pub type CtrlC = tokio::signal::unix::Signal;
#[cfg(windows)]
pub type CtrlC = tokio::signal::windows::CtrlC;

/// Exit status after Ctrl-C: 128 plus the signal's number.
pub const STATUS: u8 = 130;

/// The error of a command that Ctrl-C stopped.
#[derive(Debug)]
pub struct Interrupted;

/// Starts to listen for Ctrl-C.
///
/// # Errors
/// If the system refuses.
pub fn ctrl_c() -> io::Result<CtrlC> {
    #[cfg(unix)]
    return tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt());
    #[cfg(windows)]
    return tokio::signal::windows::ctrl_c();
}

/// Records whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to watch for Ctrl-C. Before this call, Ctrl-C ends the process at once.
    ///
    /// # Errors
    /// If the system refuses to deliver the signal or to start a thread.
    pub fn watch() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let mut signals = {
            let _entered = runtime.enter();
            ctrl_c()?
        };
        let seen = Interrupt(Arc::new(AtomicBool::new(false)));
        let flag = seen.clone();
        thread::Builder::new().name("interrupt".into()).spawn(move || {
            runtime.block_on(async {
                loop {
                    signals.recv().await;
                    if flag.0.swap(true, Ordering::Relaxed) {
                        process::exit(STATUS.into());
                    }
                }
            });
        })?;
        Ok(seen)
    }

    /// Whether Ctrl-C was pressed.
    pub fn was_pressed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether Ctrl-C was pressed since the last call.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
