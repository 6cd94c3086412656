//! Registration of metrics, and the buckets of histograms.

use prometheus_client::registry::{Metric, Registry};

/// Buckets for the seconds to a first token and for parts of that time. They are vLLM's buckets, with finer ones added
/// for small models.
pub const FIRST_TOKEN: [f64; 22] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0,
];
/// Buckets for the seconds between tokens.
pub const PER_TOKEN: [f64; 18] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0];
/// Buckets for the seconds of a whole request.
pub const WHOLE: [f64; 20] =
    [0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 600.0];
/// Buckets for numbers of tokens.
pub const TOKENS: [f64; 16] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];
/// Buckets for numbers of outputs.
pub const OUTPUTS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// Registers a metric and returns it.
pub fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}
