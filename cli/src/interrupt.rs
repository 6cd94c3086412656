//! Ctrl-C while text is generated: the first ends it in good order, one that comes before the first is heeded ends the
//! process.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io, thread};

use anyhow::Result;

#[cfg(unix)]
pub type CtrlC = tokio::signal::unix::Signal;
#[cfg(windows)]
pub type CtrlC = tokio::signal::windows::CtrlC;

/// The exit status of a process that Ctrl-C has ended: 128 and the signal's number.
pub const STATUS: u8 = 130;

/// The error of a command that Ctrl-C has ended.
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

/// Whether there was a Ctrl-C.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Begins to wait for it. Until then it ends the process at once.
    ///
    /// # Errors
    /// If the system does not let us.
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

    /// Whether there was one.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether there was one since it was last asked.
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
