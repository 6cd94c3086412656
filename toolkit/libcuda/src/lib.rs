//! A `libcuda.so.1` for machines without a GPU. It exports the CUDA driver API, which runs PTX in the emulator.
//!
//! The emulator implements the functions, and this library exports them under the names that programs look for.
//! Environment variables are read in `settings.rs`, and faults are reported in `report.rs`.

mod report;
mod settings;

/// Exports functions of the emulator's driver under their own names. Each export is a jump to the emulator's function
/// with all registers unchanged, so no signatures are needed here.
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

/// Makes the dynamic loader call [`load`] when the library is loaded.
#[used]
// SAFETY: the section is a list of functions that the dynamic loader calls once, and `load` is such a function.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

extern "C" fn load() {
    emulator::driver::initialise_with(initialise);
    emulator::driver::listen(report::on_notice);
    // SAFETY: the library is never unloaded, so `end` can still be called when the process exits.
    unsafe { libc::atexit(end) };
}

/// Reads the environment when the driver is initialised. Returns false if a variable is invalid.
fn initialise() -> bool {
    let prefix = settings::PREFIX;
    let variables = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    match settings::Settings::read(variables.filter(|(name, _)| name.starts_with(prefix))) {
        Ok(settings) => {
            emulator::driver::configure(settings.device.clone());
            emulator::driver::configure_launches(settings.launches.clone());
            settings::store(settings);
            true
        }
        Err(wrong) => {
            eprintln!("libcuda of Quire's emulator: {wrong}");
            false
        }
    }
}

/// Prints the error summary when the process exits. If there were faults and an exit code is set, exits with that code.
extern "C" fn end() {
    let Some(settings) = settings::current() else { return };
    if report::summarise() && settings.exit_code != 0 {
        // SAFETY: `fflush` with a null pointer flushes all streams, which `_exit` would not. `_exit` ends the process
        // at once.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(settings.exit_code.into())
        }
    }
}
