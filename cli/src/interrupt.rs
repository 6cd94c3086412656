//! Ctrl-C while text is generated: the first ends it in good order, one that comes before the first is heeded ends the
//! process.

use std::fmt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

/// The exit status of a process that Ctrl-C has ended: 128 and the signal's number.
pub const STATUS: u8 = 130;

/// The error of a command that Ctrl-C has ended.
#[derive(Debug)]
pub struct Interrupted;

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
            signal(SignalKind::interrupt())?
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
