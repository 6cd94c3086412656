//! The driver that this process uses: the machine's libcuda or the emulator.

mod symbols;

use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The file name of the driver library in every installation.
const LIBRARY: &str = "libcuda.so.1";

/// The driver that this process uses. The first successful constructor chooses it once for the whole process. All
/// driver API calls of `cust` go to it.
pub struct Driver {
    kind: Kind,
}

enum Kind {
    Machine(Library),
    Emulator,
}

static CHOSEN: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// Chooses NVIDIA's driver.
    ///
    /// # Errors
    /// Returns [`Error::NoDriver`] if the machine has none, and the emulator can still be chosen then. Returns
    /// [`Error::DriverChosen`] if this process already uses the emulator.
    pub fn machine() -> Result<&'static Driver> {
        Self::choose(
            |kind| matches!(kind, Kind::Machine(_)),
            || {
                // SAFETY: this is the driver's library, whose initialisation every CUDA program relies on.
                unsafe { Library::new(LIBRARY) }.map(Kind::Machine).map_err(Error::NoDriver)
            },
        )
    }

    /// Chooses the emulator.
    ///
    /// # Errors
    /// Returns [`Error::DriverChosen`] if this process already uses the machine's driver.
    pub fn emulator() -> Result<&'static Driver> {
        Self::choose(|kind| matches!(kind, Kind::Emulator), || Ok(Kind::Emulator))
    }

    /// Returns the chosen driver. If none is chosen, chooses NVIDIA's driver if the machine has one, else the emulator.
    /// Tests use it to run on any machine: `Context::new(Driver::anywhere()?, 0)`.
    ///
    /// # Errors
    /// Never fails in practice. The signature matches the other constructors.
    pub fn anywhere() -> Result<&'static Driver> {
        match Self::chosen() {
            Some(driver) => Ok(driver),
            None => Self::machine().or_else(|error| match (error, Self::chosen()) {
                // Another thread has chosen a driver in the meantime.
                (_, Some(driver)) => Ok(driver),
                (Error::NoDriver(_), None) => Self::emulator(),
                (error, None) => Err(error),
            }),
        }
    }

    /// Chooses a driver by name: `cuda` or `emulator`.
    ///
    /// # Errors
    /// Returns [`Error::UnknownDriver`], and the errors of [`machine`](Self::machine) and [`emulator`](Self::emulator).
    pub fn named(name: &str) -> Result<&'static Driver> {
        match name {
            "cuda" => Self::machine(),
            "emulator" => Self::emulator(),
            _ => Err(Error::UnknownDriver(name.to_owned())),
        }
    }

    /// Chooses the driver for tests and benchmarks: the one that `QUIRE_TEST_DEVICE` names, or else the emulator.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn under_test() -> Result<&'static Driver> {
        Self::named(&std::env::var("QUIRE_TEST_DEVICE").unwrap_or_else(|_| "emulator".to_owned()))
    }

    /// The chosen driver, or `None` if none is chosen yet.
    pub fn chosen() -> Option<&'static Driver> {
        CHOSEN.get()
    }

    fn choose(wanted: fn(&Kind) -> bool, load: impl FnOnce() -> Result<Kind>) -> Result<&'static Driver> {
        static CHOOSING: Mutex<()> = Mutex::new(());
        let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = match CHOSEN.get() {
            Some(driver) => driver,
            None => {
                let kind = load()?;
                CHOSEN.get_or_init(|| Driver { kind })
            }
        };
        if wanted(&driver.kind) { Ok(driver) } else { Err(Error::DriverChosen(driver.name())) }
    }

    /// The driver's name: `cuda` or `emulator`.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Machine(_) => "cuda",
            Kind::Emulator => "emulator",
        }
    }

    /// Whether this is the emulator.
    pub fn is_emulator(&self) -> bool {
        matches!(self.kind, Kind::Emulator)
    }

    /// Returns the address of a driver API function, or `None` if this driver does not have it. Needed for functions
    /// newer than CUDA 11.4, which `cust` has no bindings for.
    pub fn lookup(&self, name: &str) -> Option<*const c_void> {
        match &self.kind {
            Kind::Machine(library) => {
                // SAFETY: only the symbol's address is used. Callers of the address must know its type.
                unsafe { library.get::<*const c_void>(name.as_bytes()) }.ok().map(|symbol| *symbol)
            }
            Kind::Emulator => emulator::driver::symbol(name),
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.name())
    }
}
