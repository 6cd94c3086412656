//! The launch configuration that callers pass, including launch attributes.

use super::argument::array;
use crate::driver::process::Handle;
use crate::driver::result_code::{Result, ResultCode};

/// The attribute of a cooperative launch, whose blocks must all be resident together.
const COOPERATIVE: u32 = 2;
/// The attribute that sets the cluster shape.
const CLUSTER_DIMENSION: u32 = 4;
/// The attribute that lets a launch begin before the previous one ends: programmatic stream serialisation.
const DEPENDENT: u32 = 6;
/// Attributes that change no result: ignored, L2 access policy, synchronisation policy, cluster scheduling, priority,
/// and preferred shared memory carveout.
const HINTS: [u32; 6] = [0, 1, 3, 5, 8, 14];

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LaunchConfiguration {
    /// The grid, the block and the bytes of dynamic shared memory.
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

/// The shape and attributes of a launch.
#[derive(Clone, Copy)]
pub(in crate::driver) struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: usize,
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident together.
    pub cooperative: bool,
    /// Whether the launch may begin before the previous launch ends.
    pub dependent: bool,
}

impl LaunchShape {
    /// Creates the shape of a launch without attributes.
    pub fn new(grid: [u32; 3], block: [u32; 3], dynamic_shared: u32) -> Self {
        let dynamic_shared = dynamic_shared as usize;
        Self { grid, block, dynamic_shared, cluster: None, cooperative: false, dependent: false }
    }
}

impl LaunchConfiguration {
    /// Reads the shape and attributes from the configuration.
    ///
    /// # Safety
    /// The `attributes` array must have `count` elements.
    pub(in crate::driver) unsafe fn shape(&self) -> Result<LaunchShape> {
        let [grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared] = self.numbers;
        let mut shape = LaunchShape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], dynamic_shared);
        // SAFETY: this function's contract.
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
