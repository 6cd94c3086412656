//! The choice of a driver. This is a single test in a file of its own, because a process chooses its driver only once.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::driver::DeviceOptions;
use launch::cust::error::CudaError;
use launch::{Context, Driver, Error, Module};

/// Whether libcuda is loaded in this process.
#[cfg(target_os = "linux")]
fn has_libcuda() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("/libcuda.so")
}

fn assert_the_emulator_follows_its_options(driver: &'static Driver) {
    let ampere = DeviceOptions { capability: (8, 0), multiprocessors: 3, memory: 1 << 20, ..Default::default() };
    emulator::driver::configure(ampere);
    let context = Context::new(driver, 0).unwrap();
    let limits = context.limits();
    assert_eq!((limits.capability, limits.multiprocessors, limits.shared_opt_in), ((8, 0), 3, 163 << 10));
    assert_eq!(context.memory().unwrap(), (1 << 20, 1 << 20));
    let hopper = ".version 8.0\n.target sm_90a\n.address_size 64\n";
    let error = Module::load(&context, hopper, &[]).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_NO_BINARY_FOR_GPU") && error.contains("code for sm_90a"), "{error}");
}

#[test]
fn a_driver_is_chosen_once_and_nothing_else_loads_libcuda() {
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
            assert!(emulator.lookup("cuLaunchKernel").is_some() && emulator.lookup("cuTexObjectDestroy").is_none());
            let context = Context::new(emulator, 0).unwrap();
            assert_eq!((context.name(), context.is_emulator()), ("Quire emulator", true));
            let managed = launch::cust::memory::UnifiedBuffer::<u8>::new(&7, 3).unwrap();
            assert_eq!(*managed, [7; 3]);
            // SAFETY: there is no texture, and the emulator does not have the function.
            let missing = unsafe { launch::cust::sys::cuTexObjectDestroy(0) };
            assert_eq!(
                missing,
                launch::cust::sys::CUresult::CUDA_ERROR_NOT_SUPPORTED,
                "textures are not in the emulator"
            );
            #[cfg(target_os = "linux")]
            assert!(!has_libcuda());
            assert_the_emulator_follows_its_options(emulator);
        }
    }
}
