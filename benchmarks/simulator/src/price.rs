//! How long a step of the scheduler takes.

use engine::tools::scheduler::Step;

use crate::cost::StepLoad;
use crate::server::{SimulatedServer, Stepping, Swapping};

/// Returns the seconds of a step's computation. [`move_seconds`] covers its block moves.
pub fn seconds(server: &SimulatedServer<'_>, step: &Step) -> f64 {
    let mut load = StepLoad::default();
    for chunk in &step.chunks {
        if chunk.range.len() == 1 {
            load.decodes += 1;
            load.decode_context += chunk.range.end as u64;
        } else {
            load.prompts.push((chunk.range.len(), chunk.range.end));
        }
    }
    match server.stepping {
        Stepping::Mixed(_) => {
            load.logits = load.decodes + load.prompts.len();
            server.cost.seconds(&load)
        }
        Stepping::Separate(most) => {
            let prompts = std::mem::take(&mut load.prompts);
            load.logits = load.decodes;
            batches(prompts, most).map(|load| server.cost.seconds(&load)).sum::<f64>() + server.cost.seconds(&load)
        }
    }
}

/// Groups prompts into steps of at most `most` tokens. A longer prompt has a step of its own.
fn batches(prompts: Vec<(usize, usize)>, most: usize) -> impl Iterator<Item = StepLoad> {
    let mut left = prompts.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut load = StepLoad { prompts: vec![left.next()?], logits: 1, ..StepLoad::default() };
        let mut tokens = load.prompts[0].0;
        while let Some(next) = left.next_if(|next| tokens + next.0 <= most) {
            tokens += next.0;
            load.prompts.push(next);
            load.logits += 1;
        }
        Some(load)
    })
}

/// Returns the seconds of a step's block moves within the memory, to the host, and back.
pub fn move_seconds(server: &SimulatedServer<'_>, step: &Step) -> f64 {
    let moves = &step.moves;
    let swapped = moves.swap_out.len() + moves.swap_in.len();
    let mut seconds = server.cost.copy_seconds(moves.copies.len() * server.block_size);
    if swapped > 0 {
        seconds += swap_seconds(server, swapped);
    }
    seconds
}

/// Returns the seconds of moving `blocks` blocks to the host's memory or back.
pub fn swap_seconds(server: &SimulatedServer<'_>, blocks: usize) -> f64 {
    let tokens = blocks * server.block_size;
    match server.swapping {
        Swapping::PerBlock => server.cost.swap_seconds(tokens, 2 * server.cost.layers() * blocks),
        Swapping::Gathered => server.cost.swap_seconds(tokens, 1) + server.cost.copy_seconds(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_not_cut_and_fill_steps_in_order() {
        let tokens = |prompts: &[usize]| {
            let prompts = prompts.iter().map(|&n| (n, n)).collect();
            batches(prompts, 100).map(|load| load.prompts.iter().map(|p| p.0).collect()).collect::<Vec<Vec<_>>>()
        };
        assert_eq!(tokens(&[60, 40, 1, 300, 99]), [vec![60, 40], vec![1], vec![300], vec![99]]);
        assert_eq!(tokens(&[]), Vec::<Vec<usize>>::new());
    }
}
