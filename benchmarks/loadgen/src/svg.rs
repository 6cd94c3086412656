//! SVG plots and their elements: scales, lines, points and texts.

use std::fmt::Write;

/// Returns an image of this size in pixels with a white background. `draw` adds its elements.
pub fn document((width, height): (f64, f64), font_size: u32, draw: impl FnOnce(&mut String)) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"{font_size}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    draw(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

/// Returns round numbers from 0 to at least `most`, in about `steps` steps of 1, 2 or 5 times a power of ten.
pub fn ticks(most: f64, steps: f64) -> Vec<f64> {
    let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
    let power = 10f64.powf((most / steps).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|round| round * power).into_iter().find(|step| step * steps >= most * 0.999);
    let step = step.unwrap_or(most / steps);
    (0..=(most / step - 1e-9).ceil() as usize).map(|i| i as f64 * step).collect()
}

/// Returns the last tick, the end of the scale.
pub fn last(ticks: &[f64]) -> f64 {
    ticks.last().copied().unwrap_or(1.0)
}

/// Draws a line through points.
pub fn line(svg: &mut String, colour: &str, points: &[(f64, f64)]) {
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", points.join(" "));
}

/// Draws a point.
pub fn point(svg: &mut String, colour: &str, (x, y): (f64, f64), radius: f64) {
    let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>");
}

/// Formats a number with at most six decimals and no trailing zeros.
pub fn rounded(n: f64) -> String {
    format!("{n:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes a text. `anchor` says whether its start, middle or end is at the given point.
pub fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    // XML allows no control characters, not even escaped ones.
    let visible: String = escaped(text).chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{visible}</text>");
}

/// Escapes a text for XML, and therefore for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_enclose() {
        assert_eq!(ticks(7.0, 4.0), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(7.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(0.0, 4.0), [0.0, 0.5, 1.0]);
        for most in [1e-9, 0.3, 1.0, 12_345.0, 1e12] {
            let ticks = ticks(most, 4.0);
            assert!(last(&ticks) >= most * (1.0 - 1e-8) && (3..=6).contains(&ticks.len()), "{most}: {ticks:?}");
        }
        for most in [1e-9, 0.0, 0.3, 12_345.0, f64::NAN] {
            assert!(last(&ticks(most, 5.0)) >= if most > 0.0 { most * (1.0 - 1e-8) } else { 0.0 });
        }
    }
}
