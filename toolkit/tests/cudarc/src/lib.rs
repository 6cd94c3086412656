//! Adds vectors on a GPU with cudarc.

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// The compiled kernel.
const PTX: &str = include_str!("add.ptx");

/// Adds two vectors on a GPU.
///
/// # Errors
/// Fails if a CUDA call fails.
pub fn sum(a: &[f32], b: &[f32]) -> Result<Vec<f32>, DriverError> {
    assert_eq!(a.len(), b.len());
    let stream = CudaContext::new(0)?.new_stream()?;
    let add = stream.context().load_module(Ptx::from_src(PTX))?.load_function("add")?;
    let (mut on_device, other, n) = (stream.clone_htod(a)?, stream.clone_htod(b)?, a.len() as i32);
    let mut launch = stream.launch_builder(&add);
    launch.arg(&mut on_device).arg(&other).arg(&n);
    // SAFETY: the arguments match the kernel's parameters, and both buffers have `n` elements.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
    stream.clone_dtoh(&on_device)
}

#[cfg(test)]
mod tests {
    #[test]
    fn vectors_are_added_on_a_gpu() {
        let a: Vec<f32> = (0..3000).map(|i| i as f32).collect();
        let b: Vec<f32> = a.iter().map(|x| 2.0 * x).collect();
        let wanted: Vec<f32> = a.iter().map(|x| 3.0 * x).collect();
        assert_eq!(super::sum(&a, &b).unwrap(), wanted);
    }
}
