//! Declarations of metrics, and the buckets of histograms.

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

/// Declares a struct of metrics. Each has its type, name and description, and its first value if that is not the type's
/// default. A field without a name is such a struct itself. The fields after `..` are no metrics.
macro_rules! metrics {
    (
        $(#[$about:meta])*
        $vis:vis struct $Group:ident {
            $($(#[$doc:meta])* $access:vis $field:ident: $kind:ty $(= $name:literal, $help:literal $(, $first:expr)?)?;)*
            $(.. $($(#[$other_doc:meta])* $other_access:vis $other:ident: $other_kind:ty,)*)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $Group {
            $($(#[doc = $help])? $(#[$doc])* $access $field: $kind,)*
            $($($(#[$other_doc])* $other_access $other: $other_kind,)*)?
        }

        impl $Group {
            pub(super) fn register(registry: &mut prometheus_client::registry::Registry) -> Self {
                $Group {
                    $($field: metrics!(@ registry $kind $(, $name, $help $(, $first)?)?),)*
                    $($($other: Default::default(),)*)?
                }
            }
        }
    };
    (@ $registry:ident $kind:ty) => { <$kind>::register($registry) };
    (@ $registry:ident $kind:ty, $name:literal, $help:literal) => {
        metrics!(@ $registry $kind, $name, $help, <$kind>::default())
    };
    (@ $registry:ident $kind:ty, $name:literal, $help:literal, $first:expr) => {{
        let metric: $kind = $first;
        $registry.register($name, $help, metric.clone());
        metric
    }};
}
pub(super) use metrics;
