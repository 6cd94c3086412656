//! Charts as SVG: lines over an axis, and stacked or grouped bars.

use std::fmt::Write;

use loadgen::svg::{document, last, line, point, rounded, text, ticks};
use serde_json::{Value, json};

/// Width and height of a chart in pixels, and the number of charts in a row.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const COLUMNS: usize = 3;
/// The area of a chart that shows the data.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 440.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 205.0;
/// Height of the heading above all charts.
const HEADING: f64 = 34.0;
/// Approximate number of steps on an axis.
const STEPS: f64 = 5.0;
/// Colours that most readers can tell apart, in print too.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#b8a800"];

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// The data.
    pub data: ChartData,
    /// End of the vertical axis. If `None`, the axis ends with the data.
    pub top: Option<f64>,
}

/// The data of a chart.
#[derive(Clone, Debug)]
pub enum ChartData {
    /// Named lines through points in order.
    Lines(Vec<(String, Vec<(f64, f64)>)>),
    /// Grouped bars: the categories, and for each named series one value per category.
    Bars(Vec<String>, Vec<(String, Vec<f64>)>),
    /// Stacked bars, with the same contents as `Bars`.
    Stacked(Vec<String>, Vec<(String, Vec<f64>)>),
}

impl Chart {
    /// Creates a chart that ends with its data.
    pub fn new(title: impl Into<String>, x: &str, y: &str, data: ChartData) -> Self {
        Chart { title: title.into(), x: x.into(), y: y.into(), data, top: None }
    }

    /// Creates a line chart.
    pub fn lines(title: impl Into<String>, x: &str, y: &str, lines: Vec<(String, Vec<(f64, f64)>)>) -> Self {
        Self::new(title, x, y, ChartData::Lines(lines))
    }

    /// Returns the data as JSON.
    pub fn json(&self) -> Value {
        let data = match &self.data {
            ChartData::Lines(lines) => json!({
                "lines": lines.iter().map(|(name, points)| json!({ "name": name, "points": points })).collect::<Vec<_>>()
            }),
            ChartData::Bars(categories, series) | ChartData::Stacked(categories, series) => json!({
                "categories": categories,
                "series": series.iter().map(|(name, values)| json!({ "name": name, "values": values })).collect::<Vec<_>>(),
            }),
        };
        json!({ "title": self.title, "x": self.x, "y": self.y, "data": data })
    }

    fn draw(&self, svg: &mut String) {
        text(svg, (LEFT, TOP - 16.0), "start", &self.title);
        text(svg, (RIGHT, BOTTOM + 32.0), "end", &self.x);
        text(svg, (LEFT - 8.0, TOP - 4.0), "end", &self.y);
        match &self.data {
            ChartData::Lines(lines) => self.draw_lines(svg, lines),
            ChartData::Bars(categories, series) => {
                let most = series.iter().flat_map(|s| s.1.iter().copied()).fold(0.0, f64::max);
                self.draw_bars(svg, categories, series, most, false);
            }
            ChartData::Stacked(categories, series) => {
                let sum = |at: usize| series.iter().filter_map(|s| s.1.get(at)).sum::<f64>();
                let most = (0..categories.len()).map(sum).fold(0.0, f64::max);
                self.draw_bars(svg, categories, series, most, true);
            }
        }
    }

    fn scale(&self, svg: &mut String, most: f64) -> impl Fn(f64) -> f64 + use<> {
        let ticks = ticks(self.top.unwrap_or(most), STEPS);
        let top = self.top.unwrap_or(last(&ticks));
        let y = move |value: f64| BOTTOM - (BOTTOM - TOP) * (value / top).clamp(0.0, 1.0);
        for &tick in ticks.iter().filter(|tick| **tick <= top * 1.0001) {
            line(svg, "#dddddd", &[(LEFT, y(tick)), (RIGHT, y(tick))]);
            text(svg, (LEFT - 6.0, y(tick) + 4.0), "end", &rounded(tick));
        }
        y
    }

    fn draw_lines(&self, svg: &mut String, lines: &[(String, Vec<(f64, f64)>)]) {
        let points = || lines.iter().flat_map(|line| line.1.iter().copied());
        let y = self.scale(svg, points().map(|p| p.1).fold(0.0, f64::max));
        let x_ticks = ticks(points().map(|p| p.0).fold(0.0, f64::max), STEPS);
        let x = |at: f64| LEFT + (RIGHT - LEFT) * at / last(&x_ticks);
        for &tick in &x_ticks {
            line(svg, "#888888", &[(x(tick), BOTTOM), (x(tick), BOTTOM + 4.0)]);
            text(svg, (x(tick), BOTTOM + 17.0), "middle", &rounded(tick));
        }
        for (i, (name, points)) in lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            // A line that rises above the chart ends at its top edge.
            let inside = points.iter().take_while(|p| self.top.is_none_or(|top| p.1 <= top)).count();
            let places: Vec<_> = points.iter().take(inside + 1).map(|p| (x(p.0), y(p.1))).collect();
            line(svg, colour, &places);
            for (x, y) in places.iter().take(inside) {
                point(svg, colour, (*x, *y), 2.5);
            }
            legend(svg, i, name, colour);
        }
    }

    fn draw_bars(
        &self,
        svg: &mut String,
        categories: &[String],
        series: &[(String, Vec<f64>)],
        most: f64,
        stacked: bool,
    ) {
        let y = self.scale(svg, most);
        let slot = (RIGHT - LEFT) / categories.len().max(1) as f64;
        let width = 0.8 * slot / if stacked { 1.0 } else { series.len().max(1) as f64 };
        for (at, category) in categories.iter().enumerate() {
            let left = LEFT + slot * (at as f64 + 0.1);
            text(svg, (left + 0.4 * slot, BOTTOM + 17.0), "middle", category);
            let mut below = 0.0;
            for (i, (_, values)) in series.iter().enumerate() {
                let value = values.get(at).copied().unwrap_or(0.0);
                let x = if stacked { left } else { left + width * i as f64 };
                let (high, low) = (y(below + value), y(below));
                let colour = COLOURS[i % COLOURS.len()];
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    low - high
                );
                if stacked {
                    below += value;
                }
            }
        }
        for (i, (name, _)) in series.iter().enumerate() {
            legend(svg, i, name, COLOURS[i % COLOURS.len()]);
        }
    }
}

/// Draws charts in rows under a title, and returns the SVG image.
pub fn svg(title: &str, charts: &[Chart]) -> String {
    let columns = charts.len().clamp(1, COLUMNS);
    let (width, height) = (WIDTH * columns as f64, HEADING + HEIGHT * charts.len().div_ceil(columns) as f64);
    document((width, height), 11, |svg| {
        text(svg, (14.0, 22.0), "start", title);
        for (i, chart) in charts.iter().enumerate() {
            let (x, y) = (WIDTH * (i % columns) as f64, HEADING + HEIGHT * (i / columns) as f64);
            let _ = writeln!(svg, "<g transform=\"translate({x} {y})\" stroke-width=\"1.5\">");
            chart.draw(svg);
            svg.push_str("</g>\n");
        }
    })
}

/// Draws the name of a series below the chart, three names in a row.
fn legend(svg: &mut String, at: usize, name: &str, colour: &str) {
    let (x, y) = (LEFT - 40.0 + 145.0 * (at % 3) as f64, BOTTOM + 52.0 + 17.0 * (at / 3) as f64);
    let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>", y - 9.0);
    text(svg, (x + 14.0, y), "start", name);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use roxmltree::Document;

    use super::*;

    #[test]
    fn points_are_drawn_at_their_coordinates() {
        let lines = vec![("a & b".to_owned(), vec![(0.0, 0.0), (5.0, 0.5), (10.0, 1.0)])];
        let chart = Chart { top: Some(1.0), ..Chart::lines("<t>", "x", "y", lines) };
        let svg = svg("all", &[chart]);
        let document = Document::parse(&svg).unwrap();
        let at = |n: roxmltree::Node<'_, '_>, name| n.attribute(name).unwrap().parse::<f64>().unwrap();
        let circles: Vec<_> =
            document.descendants().filter(|n| n.has_tag_name("circle")).map(|n| (at(n, "cx"), at(n, "cy"))).collect();
        assert_eq!(circles.len(), 3);
        assert!((circles[1].0 - (LEFT + RIGHT) / 2.0).abs() < 0.1 && (circles[1].1 - (TOP + BOTTOM) / 2.0).abs() < 0.1);
        assert!(document.descendants().any(|n| n.text() == Some("a & b")));
    }

    #[test]
    fn stacked_bars_touch() {
        let data = ChartData::Stacked(vec!["s".into()], vec![("a".into(), vec![60.0]), ("b".into(), vec![40.0])]);
        let chart = Chart { top: Some(100.0), ..Chart::new("t", "", "%", data) };
        let svg = svg("all", &[chart]);
        let document = Document::parse(&svg).unwrap();
        let bars: Vec<_> =
            document.descendants().filter(|n| n.has_tag_name("rect") && n.attribute("y").is_some()).collect();
        let number = |at: usize, name| bars[at].attribute(name).unwrap().parse::<f64>().unwrap();
        assert!((number(1, "y") + number(1, "height") - number(0, "y")).abs() < 0.11);
        assert!((number(1, "y") - TOP).abs() < 0.11 && (number(0, "y") + number(0, "height") - BOTTOM).abs() < 0.11);
    }
}
