//! `quire-dynamo`: runs a Quire engine as a worker of NVIDIA Dynamo.

use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use quire_dynamo::args::Args;

fn main() -> Result<()> {
    let (engine, config) = Args::parse().engine()?;
    dynamo_backend_common::run(Arc::new(engine), config)
}
