//! The launches of a step, with equal ones grouped, and their minimum cost.

use std::fmt;

use engine::tools::backend::cuda::{LaunchCost, NotedLaunch};
use serde_json::{Value, json};
use simulator::gpu::GpuSpec;
use workbench::Floor;

use cli::table::Table;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A decode step: one new token per sequence.
    Decode {
        /// Number of sequences.
        batch: usize,
        /// Tokens that each sequence attends to, including its new one.
        context: usize,
    },
    /// The prefill of a prompt of this many tokens.
    Prefill(usize),
}

impl Kind {
    /// Returns the number of new tokens.
    fn tokens(self) -> usize {
        match self {
            Kind::Decode { batch, .. } => batch,
            Kind::Prefill(tokens) => tokens,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Decode { batch, context } => write!(f, "Decode, batch {batch}, context {context}"),
            Kind::Prefill(tokens) => write!(f, "Prefill of {tokens} tokens"),
        }
    }
}

/// The minimum cost of a step.
pub struct StepRoofline {
    kind: Kind,
    gpu: &'static GpuSpec,
    /// Distinct launches in the order of their first occurrence, each with the number of times it occurs.
    groups: Vec<(NotedLaunch, u64)>,
}

impl StepRoofline {
    /// Creates the step from its launches.
    pub fn new(kind: Kind, gpu: &'static GpuSpec, launches: &[NotedLaunch]) -> StepRoofline {
        let mut groups: Vec<(NotedLaunch, u64)> = Vec::new();
        for launch in launches {
            match groups.iter_mut().find(|(first, _)| first == launch) {
                Some((_, times)) => *times += 1,
                None => groups.push((*launch, 1)),
            }
        }
        StepRoofline { kind, gpu, groups }
    }

    /// Returns the cost of all launches together.
    fn cost(&self) -> LaunchCost {
        self.groups.iter().fold(LaunchCost::default(), |sum, (NotedLaunch { cost, .. }, times)| LaunchCost {
            floor: Floor {
                bytes: sum.floor.bytes + times * cost.floor.bytes,
                flops: sum.floor.flops + times * cost.floor.flops,
            },
            weights: sum.weights + times * cost.weights,
            kv_cache: sum.kv_cache + times * cost.kv_cache,
            peers: sum.peers + times * cost.peers,
        })
    }

    /// Returns the minimum seconds of the step. Launches run one after another, and each reads its activations from
    /// memory.
    fn seconds(&self) -> f64 {
        self.groups.iter().map(|(launch, times)| *times as f64 * self.gpu.seconds_of(&launch.cost)).sum()
    }

    /// Returns the part of these seconds in which workers exchange data.
    fn exchange_seconds(&self) -> f64 {
        let exchanges = self.groups.iter().filter(|(launch, _)| launch.cost.peers > 0);
        exchanges.map(|(launch, times)| *times as f64 * self.gpu.seconds_of(&launch.cost)).sum()
    }

    /// Returns the seconds to read the weights, keys and values, which no cache can shorten.
    fn stream_seconds(&self) -> f64 {
        let LaunchCost { weights, kv_cache, .. } = self.cost();
        self.gpu.seconds(Floor { bytes: weights + kv_cache, flops: 0 })
    }

    /// Returns the maximum tokens per second.
    fn rate(&self) -> f64 {
        self.kind.tokens() as f64 / self.seconds()
    }

    /// Returns the step in the format of `--json`.
    pub fn json(&self) -> Value {
        let launches = self.groups.iter().map(|(launch, times)| {
            json!({
                "kernel": launch.kernel,
                "times": times,
                "grid": launch.shape.grid,
                "threads": launch.shape.threads[0],
                "bytes": launch.cost.floor.bytes,
                "flops": launch.cost.floor.flops,
                "peer_bytes": launch.cost.peers,
                "floor_seconds": self.gpu.seconds_of(&launch.cost),
            })
        });
        let (kind, context) = match self.kind {
            Kind::Decode { context, .. } => ("decode", context),
            Kind::Prefill(tokens) => ("prefill", tokens),
        };
        let total = self.cost();
        json!({
            "kind": kind,
            "new_tokens": self.kind.tokens(),
            "context": context,
            "launches": launches.collect::<Vec<_>>(),
            "bytes": total.floor.bytes,
            "weight_bytes": total.weights,
            "kv_cache_bytes": total.kv_cache,
            "flops": total.floor.flops,
            "peer_bytes": total.peers,
            "exchange_seconds": self.exchange_seconds(),
            "stream_seconds": self.stream_seconds(),
            "floor_seconds": self.seconds(),
            "ceiling_tokens_per_second": self.rate(),
        })
    }
}

impl fmt::Display for StepRoofline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["kernel", "times", "grid", "bytes each", "flops each", "us each", "bound by"]);
        for (launch, times) in &self.groups {
            let exchanges = launch.cost.peers > 0;
            let [x, y, z] = launch.shape.grid;
            table.row([
                launch.kernel.to_owned(),
                times.to_string(),
                if exchanges || x == 0 { "-".to_owned() } else { format!("{x} x {y} x {z}") },
                launch.cost.floor.bytes.to_string(),
                launch.cost.floor.flops.to_string(),
                format!("{:.2}", 1e6 * self.gpu.seconds_of(&launch.cost)),
                match launch.cost.floor {
                    _ if exchanges => "links",
                    floor if self.gpu.is_bound_by_memory(floor) => "memory",
                    _ => "tensor cores",
                }
                .to_owned(),
            ]);
        }
        let launches: u64 = self.groups.iter().map(|(_, times)| times).sum();
        writeln!(f, "{}: {launches} launches\n\n{table}", self.kind)?;
        let LaunchCost { floor: Floor { bytes, flops }, weights, kv_cache, peers } = self.cost();
        let rest = bytes - weights - kv_cache;
        for (name, bytes) in [("weights", weights), ("KV cache", kv_cache), ("activations", rest), ("total", bytes)] {
            writeln!(f, "{name:<16}{:>9.3} GB", bytes as f64 / 1e9)?;
        }
        writeln!(f, "products        {:>9.3} TFLOP", flops as f64 / 1e12)?;
        writeln!(f, "weights, KV read{:>9.3} ms", 1e3 * self.stream_seconds())?;
        if peers > 0 {
            writeln!(f, "from other GPUs {:>9.3} GB", peers as f64 / 1e9)?;
            writeln!(f, "exchanges       {:>9.3} ms", 1e3 * self.exchange_seconds())?;
        }
        writeln!(f, "minimum time    {:>9.3} ms, at most {:.0} tokens/s", 1e3 * self.seconds(), self.rate())
    }
}
