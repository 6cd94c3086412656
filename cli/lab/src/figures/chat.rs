//! Figure 17: a chatbot.

use anyhow::Result;

use super::rates::{self, Panel};
use crate::figure::{Figure, FigureOrigin};
use crate::laboratory::{Curve, Lab};
use simulator::admission::Reservation;
use simulator::beam_record::BeamRecord;
use simulator::deployment::OPT_13B;
use simulator::system::System;
use simulator::traces::TraceWorkload;

/// Returns the curves.
pub fn curves(lab: &Lab<'_>) -> Vec<Curve> {
    let orca = [Reservation::Oracle, Reservation::Pow2, Reservation::Max].map(System::Orca);
    let systems = [System::Paged].into_iter().chain(orca).chain([System::Quire]);
    systems.map(|system| Curve::new(0, system, OPT_13B, TraceWorkload::Chat, 1.0, lab)).collect()
}

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let curves = curves(lab);
    let found = lab.sustained(&curves, &BeamRecord::default())?;
    let panel = Panel { title: "OPT-13B, chatbot".into(), paper: "2x the three Orcas".into() };
    let (table, charts) = rates::draw(&[panel], &curves, &found);
    Ok(Figure {
        number: "17",
        title: "a chatbot, with histories of up to 1,024 tokens",
        origin: FigureOrigin::Simulated,
        paper: "vLLM sustains twice the rate of the three Orcas, which are similar. Most prompts have 1,024 tokens, and the \
                buddy allocator rounds the reservation for an output to 1,024 or 2,048 tokens, whatever its length."
            .into(),
        notes: vec![
            "Conversations consist of turns with ShareGPT-like lengths. A request follows four turns on average, which is \
             an assumption. As in the paper, the server keeps no keys and values between turns."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
