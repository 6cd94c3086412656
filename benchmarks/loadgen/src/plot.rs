//! Draws a sweep as an SVG image.

use std::fmt::Write;

use crate::report::{Axis, Point, Report};
use crate::summary::Distribution;
use crate::svg::{document, last, line, point, rounded, text, ticks};

/// Width of the image, and height of each plot in it, in pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
/// The area of a plot that contains lines.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 600.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 215.0;
/// Height of the heading above all plots.
const HEADING: f64 = 30.0;
/// Colours that most readers can tell apart, in print too.
const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];

type Value = fn(&Point) -> Option<f64>;

/// A plot: its title with the unit, and its named lines.
struct Plot {
    title: &'static str,
    lines: &'static [(&'static str, Value)],
}

const PLOTS: [Plot; 4] = [
    Plot { title: "Normalized latency, s/token", lines: &[("mean", |p| Some(p.summary.normalized_latency?.mean))] },
    Plot {
        title: "Time to first token, s",
        lines: &[
            ("50 %", |p| p.summary.time_to_first_token.map(median)),
            ("90 %", |p| Some(p.summary.time_to_first_token?.p90)),
            ("99 %", |p| Some(p.summary.time_to_first_token?.p99)),
        ],
    },
    Plot {
        title: "Time per output token, s",
        lines: &[
            ("50 %", |p| p.summary.time_per_output_token.map(median)),
            ("90 %", |p| Some(p.summary.time_per_output_token?.p90)),
            ("99 %", |p| Some(p.summary.time_per_output_token?.p99)),
        ],
    },
    Plot { title: "Output tokens/s", lines: &[("answered", |p| Some(p.summary.output_tokens_per_second))] },
];

fn median(distribution: Distribution) -> f64 {
    distribution.p50
}

/// Draws the image: one plot for each metric, over the points of the sweep.
pub fn svg(report: &Report) -> String {
    let mut points: Vec<&Point> = report.points.iter().collect();
    points.sort_by(|a, b| a.at.total_cmp(&b.at));
    let axis = match report.axis {
        Axis::Rate => "requests/s",
        Axis::Concurrency => "requests at a time",
        Axis::Batch => "requests in a batch",
    };
    let height = HEADING + HEIGHT * PLOTS.len() as f64;
    document((WIDTH, height), 12, |svg| {
        text(svg, (LEFT, 22.0), "start", &format!("{}: {}", report.model, report.load));
        for (i, plot) in PLOTS.iter().enumerate() {
            let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", HEADING + HEIGHT * i as f64);
            plot.draw(svg, axis, &points);
            svg.push_str("</g>\n");
        }
    })
}

impl Plot {
    fn draw(&self, svg: &mut String, axis: &str, points: &[&Point]) {
        let values = points.iter().flat_map(|point| self.lines.iter().filter_map(|(_, value)| value(point)));
        let (x_ticks, y_ticks) = (scale(points.iter().map(|p| p.at)), scale(values));
        let x = |at: f64| LEFT + (RIGHT - LEFT) * at / last(&x_ticks);
        let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / last(&y_ticks);
        text(svg, (LEFT, TOP - 14.0), "start", self.title);
        text(svg, (RIGHT, BOTTOM + 34.0), "end", axis);
        for &tick in &y_ticks {
            line(svg, "#dddddd", &[(LEFT, y(tick)), (RIGHT, y(tick))]);
            text(svg, (LEFT - 8.0, y(tick) + 4.0), "end", &number(tick));
        }
        for &tick in &x_ticks {
            line(svg, "#888888", &[(x(tick), BOTTOM), (x(tick), BOTTOM + 5.0)]);
            text(svg, (x(tick), BOTTOM + 18.0), "middle", &number(tick));
        }
        for (i, ((name, value), colour)) in self.lines.iter().zip(COLOURS).enumerate() {
            let places: Vec<_> = points.iter().filter_map(|p| Some((x(p.at), y(value(p)?)))).collect();
            line(svg, colour, &places);
            places.into_iter().for_each(|place| point(svg, colour, place, 3.0));
            let at = TOP + 10.0 + 20.0 * i as f64;
            line(svg, colour, &[(RIGHT + 15.0, at - 4.0), (RIGHT + 35.0, at - 4.0)]);
            text(svg, (RIGHT + 42.0, at), "start", name);
        }
    }
}

/// Returns the ticks of an axis for these values.
fn scale(values: impl Iterator<Item = f64>) -> Vec<f64> {
    ticks(values.fold(0.0, f64::max), 4.0)
}

/// Formats a number without the digits that only come from rounding.
fn number(n: f64) -> String {
    if n >= 1e-3 || n == 0.0 { rounded(n) } else { format!("{n:.0e}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roxmltree::Document;

    use super::*;
    use crate::record::{Answer, Record};
    use crate::summary::Summary;

    fn report(rates: &[u32]) -> Report {
        let record = |rate: u32| {
            let ms = |n: u32| Duration::from_millis(n.into());
            let answer = Answer { first: Some(ms(10 * rate)), prompt_tokens: 5, output_tokens: 11, counted: true };
            Record { arrival: ms(0), end: ms(110 * rate), outcome: Ok(answer) }
        };
        let point = |&rate: &u32| Point { at: rate.into(), summary: Summary::of(&[record(rate)]) };
        Report {
            bench: "serve",
            model: "<\u{1}a & b>".into(),
            load: "x".into(),
            axis: Axis::Rate,
            points: rates.iter().map(point).collect(),
        }
    }

    /// Returns the points of the lines with this colour, one list for each plot.
    fn lines(svg: &str, colour: &str) -> Vec<Vec<(f64, f64)>> {
        let document = Document::parse(svg).unwrap();
        let circles = |plot: roxmltree::Node<'_, '_>| {
            let circles = plot.children().filter(|n| n.has_tag_name("circle") && n.attribute("fill") == Some(colour));
            let number = |n: roxmltree::Node<'_, '_>, name| n.attribute(name).unwrap().parse::<f64>().unwrap();
            circles.map(|n| (number(n, "cx"), number(n, "cy"))).collect()
        };
        document.root_element().children().filter(|n| n.has_tag_name("g")).map(circles).collect()
    }

    #[test]
    fn points_are_drawn_at_their_values() {
        // The rates are unordered. The largest values are ticks: 4 requests/s, 0.04 s/token, 0.04 s.
        let svg = svg(&report(&[4, 1, 2]));
        let plots = lines(&svg, COLOURS[0]);
        assert_eq!(plots.len(), PLOTS.len());
        let place = |rate: f64| (LEFT + (RIGHT - LEFT) * rate / 4.0, BOTTOM - (BOTTOM - TOP) * rate / 4.0);
        for plot in &plots[..3] {
            for ((x, y), rate) in plot.iter().zip([1.0, 2.0, 4.0]) {
                assert!((x - place(rate).0).abs() < 0.1 && (y - place(rate).1).abs() < 0.1, "{rate}: {x} {y}");
            }
        }
        assert!(plots[3][0].1 < plots[3][2].1, "tokens per second fall");
        let document = Document::parse(&svg).unwrap();
        assert!(document.descendants().any(|n| n.text() == Some("<a & b>: x")));
    }

    #[test]
    fn a_plot_without_measurements_is_empty() {
        let failed = Record { arrival: Duration::ZERO, end: Duration::ZERO, outcome: Err("gone".into()) };
        let mut report = report(&[]);
        assert!(lines(&svg(&report), COLOURS[0]).iter().all(Vec::is_empty));
        report.points.push(Point { at: 1.0, summary: Summary::of(&[failed]) });
        let plots = lines(&svg(&report), COLOURS[0]);
        assert_eq!(plots.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 0, 1]);
    }

    #[test]
    fn numbers_have_no_more_digits_than_they_need() {
        let labels: Vec<_> = scale([0.3].into_iter()).into_iter().map(number).collect();
        assert_eq!(labels, ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(number(2e-7), "2e-7");
        assert_eq!(scale([].into_iter()), [0.0, 0.5, 1.0]);
    }
}
