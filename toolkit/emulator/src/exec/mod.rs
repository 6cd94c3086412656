//! Executes kernels.
//!
//! A [`RunningLaunch`] has a [`GridRun`](grid_run), which chooses the warp and the block that run next. [`turn`] runs a
//! warp for a while and follows its control flow. [`instruction`] executes all other instructions. They work on the
//! types in [`state`].

mod grid_run;
mod instruction;
mod launch_check;
mod launch_config;
mod launch_kernel;
mod outcome;
mod parallel;
mod peers;
mod resident;
mod running_launch;
mod state;
mod tensor_core;
mod turn;

pub(crate) use grid_run::{Progress, Shared};
pub(crate) use launch_check::{check_launch, cluster_of};
pub(crate) use launch_config::LaunchConfig;
pub(crate) use launch_kernel::LaunchKernel;
pub(crate) use running_launch::{LaunchArguments, LaunchPlace, RunningLaunch};
pub(crate) use state::clock::{Others, forget_wait, join_others};
pub(crate) use state::fences::GlobalReleases;
