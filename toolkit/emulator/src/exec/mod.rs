//! Executes kernels.
//!
//! [`launch`] makes a [`GridRun`], which decides which warp of which block runs next. [`turn`] runs a warp for a while and
//! follows its flow of control. The other instructions are functions of [`instruction`]. All of them are given what they work
//! on, the types of [`state`].

mod grid_run;
mod instruction;
mod launch_check;
mod launch_config;
mod orders;
mod outcome;
mod resident;
mod state;
mod tensor_core;
mod turn;

pub(crate) use grid_run::launch;
pub(crate) use launch_check::check_launch;
pub(crate) use launch_config::LaunchConfig;
