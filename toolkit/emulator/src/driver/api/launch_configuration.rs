//! The configuration of a launch as callers give it, with attributes.

use super::argument::array;
use crate::driver::process::Handle;
use crate::driver::result_code::{Result, ResultCode};

/// The attribute of a launch whose blocks must be resident together.
const COOPERATIVE: u32 = 2;
/// The attribute of a launch that is the shape of its clusters.
const CLUSTER_DIMENSION: u32 = 4;
/// The attribute of a launch that may begin before the one ahead of it is over: programmatic stream serialisation.
const DEPENDENT: u32 = 6;
/// Attributes that change no result: none at all, what stays in the L2 cache, how the host waits, how clusters are spread,
/// priority, and how shared memory is carved out.
const HINTS: [u32; 6] = [0, 1, 3, 5, 8, 14];

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LaunchConfiguration {
    /// Grid, block and bytes of dynamic shared memory.
    numbers: [u32; 7],
    pub stream: Handle,
    attributes: *const LaunchAttribute,
    count: u32,
}

/// `CUlaunchAttribute`
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

/// What a launch asks for.
#[derive(Clone, Copy)]
pub(in crate::driver) struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: usize,
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident together.
    pub cooperative: bool,
    /// Whether it may begin before the launch ahead of it is over.
    pub dependent: bool,
}

impl LaunchShape {
    /// A launch without attributes.
    pub fn of(grid: [u32; 3], block: [u32; 3], dynamic_shared: u32) -> Self {
        let dynamic_shared = dynamic_shared as usize;
        Self { grid, block, dynamic_shared, cluster: None, cooperative: false, dependent: false }
    }
}

impl LaunchConfiguration {
    /// What the configuration asks for.
    ///
    /// # Safety
    /// There must be as many attributes as it says.
    pub(in crate::driver) unsafe fn shape(&self) -> Result<LaunchShape> {
        let [grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared] = self.numbers;
        let mut shape = LaunchShape::of([grid_x, grid_y, grid_z], [block_x, block_y, block_z], dynamic_shared);
        // SAFETY: there are as many attributes.
        for attribute in unsafe { array(self.attributes, self.count as usize) }? {
            match attribute.id {
                COOPERATIVE => shape.cooperative = attribute.value[0] != 0,
                CLUSTER_DIMENSION => shape.cluster = Some([0, 1, 2].map(|axis| attribute.value[axis])),
                DEPENDENT => shape.dependent = attribute.value[0] != 0,
                id if HINTS.contains(&id) => {}
                _ => return Err(ResultCode::NotSupported),
            }
        }
        Ok(shape)
    }
}
