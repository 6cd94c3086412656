//! The systems that are compared.

use anyhow::Result;

use crate::admission::{AdmissionPolicy, Contiguous, Reservation};
use crate::beam_record::BeamRecord;
use crate::cost::{CostModel, StepCost};
use crate::deployment::Deployment;
use crate::efficiency::PAGED_ATTENTION;
use crate::faster_transformer;
use crate::outcome::Outcome;
use crate::request::TraceRequest;
use crate::server::{OURS, SimulatedServer, Swapping};
use crate::simulation::Simulation;

/// A serving system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// This engine's scheduler and block manager, stepping as in the paper.
    Paged,
    /// This engine with its own steps: decodes and chunks of prompts together, and gathered swaps. Its attention is
    /// assumed to be as fast as over contiguous memory.
    Quire,
    /// Orca.
    Orca(Reservation),
    /// FasterTransformer.
    FasterTransformer,
}

/// The paper's systems, best first.
pub const PAPER: [System; 5] = [
    System::Paged,
    System::Orca(Reservation::Oracle),
    System::Orca(Reservation::Pow2),
    System::Orca(Reservation::Max),
    System::FasterTransformer,
];

impl System {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            System::Paged => "Quire, paper's steps",
            System::Quire => "Quire",
            System::Orca(Reservation::Oracle) => "Orca (Oracle)",
            System::Orca(Reservation::Pow2) => "Orca (Pow2)",
            System::Orca(Reservation::Max) => "Orca (Max)",
            System::FasterTransformer => "FasterTransformer",
        }
    }

    /// Returns the times of its steps, given the times over contiguous memory.
    pub fn cost(self, contiguous: &CostModel) -> CostModel {
        match self {
            System::Paged => contiguous.clone().with_attention_factor(PAGED_ATTENTION),
            _ => contiguous.clone(),
        }
    }

    /// Serves a trace on `deployment`. `change` may override the default configuration of the server.
    ///
    /// # Errors
    /// If a request does not fit the memory.
    pub fn run(
        self,
        deployment: &Deployment,
        cost: &dyn StepCost,
        beam_record: &BeamRecord,
        trace: &[TraceRequest],
        change: impl FnOnce(&mut SimulatedServer<'_>),
    ) -> Result<Outcome> {
        let mut server = SimulatedServer::as_in_the_paper(cost, deployment.slots);
        if self == System::Quire {
            (server.stepping, server.swapping) = (OURS, Swapping::Gathered);
        }
        change(&mut server);
        let admission: Option<Box<dyn AdmissionPolicy>> = match self {
            System::FasterTransformer => return faster_transformer::run(&server, trace, deployment.max_len),
            System::Paged | System::Quire => None,
            System::Orca(reservation) => {
                Some(Box::new(Contiguous::new(reservation, deployment.slots, deployment.max_len)))
            }
        };
        Simulation::new(server, admission, beam_record).run(trace)
    }
}
