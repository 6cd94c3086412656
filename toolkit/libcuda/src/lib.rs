//! A `libcuda.so.1` for machines without a GPU: the functions of the CUDA driver API, which run PTX in the emulator.
//!
//! The functions are the emulator's; here they get the names under which programs look for them, in a library that stands for
//! the driver's. What is set by environment variables is in `settings.rs`, and what is said of faults in `report.rs`.

mod report;
mod settings;

/// Exports functions of the emulator's driver under their own names. Each leaves everything as it is and goes on in the
/// emulator's, so that no signature is needed here.
macro_rules! export {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("jmp {}", sym emulator::driver::functions::$name);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("b {}", sym emulator::driver::functions::$name);
        }
    )*};
}

#[allow(non_snake_case, reason = "the driver's names")]
mod exports {
    emulator::driver_functions!(export);
}

/// Has [`load`] called when the library is loaded.
#[used]
// SAFETY: the section is a list of functions without arguments that the dynamic loader calls once; this is one.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

extern "C" fn load() {
    emulator::driver::initialise_with(initialise);
    emulator::driver::listen(report::hear);
    // SAFETY: the function may be called when the process ends: the library is never unloaded.
    unsafe { libc::atexit(end) };
}

/// Reads the environment when the driver is initialised. Returns whether it is as it should be.
fn initialise() -> bool {
    let prefix = settings::PREFIX;
    let variables = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    match settings::Settings::read(variables.filter(|(name, _)| name.starts_with(prefix))) {
        Ok(settings) => {
            emulator::driver::configure(settings.device.clone());
            emulator::driver::configure_launches(settings.launches.clone());
            settings::keep(settings);
            true
        }
        Err(wrong) => {
            eprintln!("libcuda of Quire's emulator: {wrong}");
            false
        }
    }
}

/// Says how many faults there were when the process ends, and ends it with the code that was asked for if there were any.
extern "C" fn end() {
    let Some(settings) = settings::kept() else { return };
    if report::summarise() && settings.exit_code != 0 {
        // SAFETY: a null pointer stands for all streams, whose contents would be lost; `_exit` ends the process at once.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(settings.exit_code.into())
        }
    }
}
