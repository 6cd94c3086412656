//! The choice of a driver. In a process of its own, and one test, since a process chooses once.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use launch::cust::error::CudaError;
use launch::{Context, Driver, Error};

/// Whether a libcuda is in this process.
#[cfg(target_os = "linux")]
fn has_libcuda() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcuda")
}

#[test]
fn a_driver_is_chosen_once_and_libcuda_is_loaded_by_nothing_else() {
    #[cfg(target_os = "linux")]
    assert!(!has_libcuda(), "the binary itself wants libcuda");
    assert!(Driver::chosen().is_none());
    let early = launch::cust::init(launch::cust::CudaFlags::empty());
    assert_eq!(early, Err(CudaError::NotInitialized));
    let unknown = Driver::named("abacus").unwrap_err();
    assert_eq!(unknown.to_string(), "no driver is called `abacus`: there are `cuda` and `emulator`");

    match Driver::machine() {
        Ok(machine) => {
            assert!(!machine.is_emulator());
            let refused = Driver::emulator().unwrap_err();
            assert!(matches!(refused, Error::DriverChosen("cuda")), "{refused}");
            assert!(machine.lookup("cuLaunchKernelEx").is_some() || machine.lookup("cuLaunchKernel").is_some());
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("no NVIDIA driver: libcuda.so.1 could not be loaded: "), "{text}");
            let emulator = Driver::named("emulator").unwrap();
            assert!(emulator.is_emulator() && Driver::chosen().is_some_and(|chosen| chosen.is_emulator()));
            let refused = Driver::machine().unwrap_err();
            assert!(matches!(refused, Error::DriverChosen("emulator")), "{refused}");
            assert!(emulator.lookup("cuLaunchKernel").is_some() && emulator.lookup("cuTensorMapEncodeTiled").is_none());
            let context = Context::new(emulator, 0).unwrap();
            assert_eq!((context.name(), context.is_emulator()), ("Quire emulator", true));
            let missing = launch::cust::memory::UnifiedBuffer::<u8>::new(&0, 1).map(|_| ());
            assert_eq!(missing, Err(CudaError::NotSupported), "managed memory is not in the emulator");
            #[cfg(target_os = "linux")]
            assert!(!has_libcuda());
        }
    }
}
