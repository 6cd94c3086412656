//! The kernel of a launch.

use crate::entry::Entry;
use crate::module::PtxModule;
use crate::program::Program;

/// The kernel of a launch.
#[derive(Clone, Copy)]
pub(crate) struct LaunchKernel<'a> {
    pub module: &'a PtxModule,
    pub entry: &'a Entry,
    pub program: &'a Program,
}
