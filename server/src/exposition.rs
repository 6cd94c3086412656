//! The two text formats for metrics, and the choice between them.
//!
//! Both formats write samples in the same way. OpenMetrics describes a counter without the `_total` suffix of its
//! samples, and ends the text with `# EOF`. Prometheus' older format, which every tool reads, describes counters with
//! the suffix and has no end marker.

use std::collections::BTreeSet;

/// A text format for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// Returns the format that best matches a client's `Accept` headers. Without a preference this is Prometheus'
    /// format.
    pub fn wanted<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut prometheus, mut open_metrics) = (Preference::default(), Preference::default());
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters = parts.filter_map(|part| part.split_once('='));
            let (mut quality, mut version) = (1.0, None);
            for (name, value) in parameters.map(|(name, value)| (name.trim(), value.trim().trim_matches('"'))) {
                match name.to_ascii_lowercase().as_str() {
                    "q" => quality = value.parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0),
                    "version" => version = Some(value),
                    _ => {}
                }
            }
            match (kind.as_str(), version) {
                ("text/plain", None | Some("0.0.4")) => prometheus.take(3, quality),
                ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => open_metrics.take(3, quality),
                ("text/*", _) => prometheus.take(2, quality),
                ("application/*", _) => open_metrics.take(2, quality),
                ("*/*", _) => {
                    prometheus.take(1, quality);
                    open_metrics.take(1, quality);
                }
                _ => {}
            }
        }
        // At equal quality, the format that the client names more precisely wins.
        if (open_metrics.quality, open_metrics.precision) > (prometheus.quality, prometheus.precision) {
            Exposition::OpenMetrics
        } else {
            Exposition::Prometheus
        }
    }

    /// The `Content-Type` of this format.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts a text from OpenMetrics into this format.
    pub fn of(self, open_metrics: String) -> String {
        match self {
            Exposition::Prometheus => prometheus(&open_metrics),
            Exposition::OpenMetrics => open_metrics,
        }
    }
}

/// The quality that a client's `Accept` headers give to a format.
#[derive(Clone, Copy, Debug, Default)]
struct Preference {
    quality: f32,
    /// How precisely the matching media range names the format: 3 for an exact type, 1 for `*/*`. The most precise
    /// range wins.
    precision: u8,
}

impl Preference {
    fn take(&mut self, precision: u8, quality: f32) {
        if (precision, quality) > (self.precision, self.quality) {
            *self = Preference { quality, precision };
        }
    }
}

fn prometheus(open_metrics: &str) -> String {
    let counter = |line: &'_ str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
    let counters: BTreeSet<String> = open_metrics.lines().filter_map(counter).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(keyword @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
                let total = if counters.contains(name) { "_total" } else { "" };
                text.extend(["# ", keyword, " ", name, total, " ", rest, "\n"]);
            }
            // Skips the end marker and the units, which the names already contain.
            (Some("#"), ..) => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_chooses() {
        use Exposition::{OpenMetrics, Prometheus};
        for (accept, expected) in [
            ("", Prometheus),
            ("*/*", Prometheus),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Prometheus),
            ("text/plain", Prometheus),
            ("text/*", Prometheus),
            ("application/json", Prometheus),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text;version=\"0.0.1\"", OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Prometheus),
            ("application/openmetrics-text;q=0.5, text/plain;q=0.4", OpenMetrics),
            ("application/openmetrics-text;q=0.4, text/plain;q=0.5", Prometheus),
            ("application/openmetrics-text;q=0, */*", Prometheus),
            ("text/plain;q=0, */*;q=0.1", OpenMetrics),
            ("application/openmetrics-text, */*;q=0.1", OpenMetrics),
            ("application/openmetrics-text;q=nan, text/plain;q=0.1", Prometheus),
            // The headers that Prometheus 2 and 3 send.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OpenMetrics,
            ),
        ] {
            assert_eq!(Exposition::wanted(std::iter::once(accept)), expected, "{accept}");
        }
        assert_eq!(Exposition::wanted(["text/plain;q=0.1", "application/openmetrics-text"].into_iter()), OpenMetrics);
        assert_eq!(Exposition::wanted(std::iter::empty()), Prometheus);
    }

    #[test]
    fn counters_are_described_by_the_names_of_their_samples() {
        let open_metrics = "# HELP steps Steps so far.\n# TYPE steps counter\nsteps_total{a=\"# TYPE b counter\"} 7\n\
                            # HELP time_seconds Time.\n# TYPE time_seconds gauge\n# UNIT time_seconds seconds\n\
                            time_seconds 0.5\n# EOF\n";
        let expected = "# HELP steps_total Steps so far.\n# TYPE steps_total counter\n\
                        steps_total{a=\"# TYPE b counter\"} 7\n\
                        # HELP time_seconds Time.\n# TYPE time_seconds gauge\ntime_seconds 0.5\n";
        assert_eq!(Exposition::Prometheus.of(open_metrics.into()), expected);
        assert_eq!(Exposition::OpenMetrics.of(open_metrics.into()), open_metrics);
    }
}
