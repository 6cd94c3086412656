//! Which libcuda this process uses: the machine's, or the emulator.

mod symbols;

use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The driver's library as every installation of it provides it.
const LIBRARY: &str = "libcuda.so.1";

/// The driver that this process uses. It is chosen once, by the first of the constructors that succeeds; all calls of
/// the driver API that `cust` makes go to it.
pub struct Driver {
    kind: Kind,
}

enum Kind {
    Machine(Library),
    Emulator,
}

static CHOSEN: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// NVIDIA's driver.
    ///
    /// # Errors
    /// [`Error::NoDriver`] if the machine has none, which leaves the choice open; [`Error::DriverChosen`] if this process
    /// uses the emulator.
    pub fn machine() -> Result<&'static Driver> {
        Self::choose(
            |kind| matches!(kind, Kind::Machine(_)),
            || {
                // SAFETY: the driver's library: what it does when it is loaded is what every CUDA program relies on.
                unsafe { Library::new(LIBRARY) }.map(Kind::Machine).map_err(Error::NoDriver)
            },
        )
    }

    /// The emulator.
    ///
    /// # Errors
    /// [`Error::DriverChosen`] if this process uses the machine's driver.
    pub fn emulator() -> Result<&'static Driver> {
        Self::choose(|kind| matches!(kind, Kind::Emulator), || Ok(Kind::Emulator))
    }

    /// The driver that was chosen, or else NVIDIA's where there is one, and the emulator elsewhere: for tests that shall run on
    /// any machine, `Context::new(Driver::anywhere()?, 0)`.
    ///
    /// # Errors
    /// None where a driver was chosen or can be; the signature is that of the others.
    pub fn anywhere() -> Result<&'static Driver> {
        match Self::chosen() {
            Some(driver) => Ok(driver),
            None => Self::machine().or_else(|error| match (error, Self::chosen()) {
                // Another thread has chosen meanwhile.
                (_, Some(driver)) => Ok(driver),
                (Error::NoDriver(_), None) => Self::emulator(),
                (error, None) => Err(error),
            }),
        }
    }

    /// The driver of a name: `cuda` or `emulator`.
    ///
    /// # Errors
    /// [`Error::UnknownDriver`], and those of [`machine`](Self::machine) and [`emulator`](Self::emulator).
    pub fn named(name: &str) -> Result<&'static Driver> {
        match name {
            "cuda" => Self::machine(),
            "emulator" => Self::emulator(),
            _ => Err(Error::UnknownDriver(name.to_owned())),
        }
    }

    /// The driver that tests and benchmarks use: the one that `QUIRE_TEST_DEVICE` names, or else the emulator.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn under_test() -> Result<&'static Driver> {
        Self::named(&std::env::var("QUIRE_TEST_DEVICE").unwrap_or_else(|_| "emulator".to_owned()))
    }

    /// The driver that was chosen, if one was.
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

    /// `cuda` or `emulator`.
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

    /// The address of a function of the driver API, or none if this driver does not have it: for functions that came
    /// after CUDA 11.4, whose bindings `cust` has.
    pub fn lookup(&self, name: &str) -> Option<*const c_void> {
        match &self.kind {
            Kind::Machine(library) => {
                // SAFETY: the symbol is only taken for an address; what type it has is for those to know who call it.
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
