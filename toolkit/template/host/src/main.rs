//! Runs a kernel on the machine's GPU, or in the emulator if it has none.

use std::process::ExitCode;

use cuda_std::launch::{Kernel, LaunchShape};
use kernels::saxpy;
use launch::{Context, DeviceBuffer, Driver, Module};

/// The PTX of the kernels, which the driver compiles for its GPU.
const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx"));

/// Threads per block: the maximum that the kernel allows.
const THREADS: u32 = 256;

fn main() -> ExitCode {
    match example() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Launches the kernel on a few numbers and prints the result.
fn example() -> Result<(), launch::Error> {
    let driver = Driver::machine().or_else(|_| Driver::emulator())?;
    let context = Context::new(driver, 0)?;
    let x = [1.0, 2.0, 3.0, 4.0];
    let y = run(&context, 2.0, &x, &[10.0; 4])?;
    println!("2 * {x:?} + 10 = {y:?}, says {}", context.name());
    Ok(())
}

/// Returns `a * x + y`, computed by the kernel.
fn run(context: &Context, a: f32, x: &[f32], y: &[f32]) -> Result<Vec<f32>, launch::Error> {
    assert_eq!(x.len(), y.len(), "x and y must be of one length");
    let module = Module::load(context, PTX, &[&saxpy::DESCRIPTOR])?;
    let stream = context.stream()?;
    // The emulator's messages use these names.
    let x = DeviceBuffer::from_slice(&stream, x)?.named("x");
    let y = DeviceBuffer::from_slice(&stream, y)?.named("y");
    let n = y.len() as u32;
    let arguments = saxpy { a, x: x.as_ptr(), y: y.as_mut_ptr(), n };
    // SAFETY: both buffers have `n` elements. They outlive the launch, because `to_vec` waits for it.
    unsafe { module.launch(&stream, LaunchShape::covering(n, THREADS), arguments) }?;
    y.to_vec(&stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_computes_what_the_host_does() {
        let context = Context::new(Driver::emulator().unwrap(), 0).unwrap();
        let x: Vec<f32> = (0..1000u16).map(f32::from).collect();
        let y: Vec<f32> = x.iter().map(|x| 1000.0 - x).collect();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 3.0 * x + y).collect();
        assert_eq!(run(&context, 3.0, &x, &y).unwrap(), expected);
    }
}
