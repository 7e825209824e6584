//! What was measured as a picture, SVG: of one run how its times are distributed, of several how they change with the
//! load.

use super::load::{Load, Measured};
use super::summary::{Summary, ms, quantile};

const COLOURS: [&str; 3] = ["#4269d0", "#efb118", "#ff725c"];
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 54.0;
const RIGHT: f64 = 28.0;
const BOTTOM: f64 = 44.0;
const TICKS: usize = 4;
/// Points of a distribution.
const STEPS: usize = 100;

/// A picture with two axes, each from 0.
struct Panel {
    title: String,
    x: String,
    series: Vec<Series>,
}

struct Series {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// The runs, each with its summary; `title` is written above them.
pub fn svg(title: &str, runs: &[(Measured, Summary)]) -> String {
    let panels = match runs {
        [(run, _)] => distributions(run),
        runs => sweep(runs),
    };
    let (width, height) = (WIDTH * panels.len() as f64, HEIGHT + 24.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<title>{0}</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"13\">{0}</text>\n",
        escaped(title)
    );
    for (index, panel) in panels.iter().enumerate() {
        text += &format!("<g transform=\"translate({} 24)\">\n{}</g>\n", WIDTH * index as f64, draw(panel));
    }
    text + "</svg>\n"
}

/// For every time, the part of the answers that took no longer.
fn distributions(run: &Measured) -> Vec<Panel> {
    let samples = || run.samples.iter().filter(|sample| sample.is_completed());
    let all: [(&str, Vec<f64>); 3] = [
        ("first token", samples().filter_map(|sample| sample.first).map(ms).collect()),
        ("between tokens", samples().flat_map(|sample| sample.gaps.iter().copied()).map(ms).collect()),
        ("whole answer", samples().map(|sample| ms(sample.total)).collect()),
    ];
    let shown = all.into_iter().filter(|(_, values)| !values.is_empty());
    shown
        .map(|(name, mut values)| {
            values.sort_by(f64::total_cmp);
            let part = |step| step as f64 / STEPS as f64;
            let points =
                (0..=STEPS).map(|step| (quantile(&values, part(step)), 100.0 * part(step))).collect();
            let title = format!("{name}: % of all within a time");
            Panel { title, x: "ms".to_string(), series: vec![Series { name: "", points }] }
        })
        .collect()
}

fn sweep(runs: &[(Measured, Summary)]) -> Vec<Panel> {
    let x = |load: Load| match load {
        Load::Clients(clients) => f64::from(clients),
        Load::Rate(rate) => rate,
    };
    let axis = match runs.first().map(|(run, _)| run.load) {
        Some(Load::Rate(_)) => "requests/s sent",
        _ => "clients",
    };
    let series = |name, value: &dyn Fn(&Summary) -> Option<f64>| {
        let mut points: Vec<(f64, f64)> =
            runs.iter().filter_map(|(run, summary)| Some((x(run.load), value(summary)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name, points }
    };
    let panel = |title: &str, series| Panel { title: title.to_string(), x: axis.to_string(), series };
    vec![
        panel(
            "first token, ms",
            vec![
                series("p50", &|run| run.first_token_ms.map(|spread| spread.p50)),
                series("p95", &|run| run.first_token_ms.map(|spread| spread.p95)),
                series("p99", &|run| run.first_token_ms.map(|spread| spread.p99)),
            ],
        ),
        panel(
            "between tokens, ms",
            vec![
                series("p50", &|run| run.between_tokens_ms.map(|spread| spread.p50)),
                series("p95", &|run| run.between_tokens_ms.map(|spread| spread.p95)),
                series("p99", &|run| run.between_tokens_ms.map(|spread| spread.p99)),
            ],
        ),
        panel("output tokens/s", vec![series("", &|run| Some(run.output_tokens_per_s))]),
    ]
}

fn draw(panel: &Panel) -> String {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let x_max = end(points().map(|point| point.0).fold(0.0, f64::max));
    let y_max = end(points().map(|point| point.1).fold(0.0, f64::max));
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x = |value: f64| LEFT + (right - LEFT) * value / x_max;
    let y = |value: f64| bottom - (bottom - TOP) * value / y_max;
    let mut text = format!("<text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{}</text>\n", panel.title);
    for tick in 0..=TICKS {
        let part = tick as f64 / TICKS as f64;
        let (at_x, at_y) = (x(part * x_max), y(part * y_max));
        text += &format!(
            "<line x1=\"{LEFT}\" y1=\"{at_y:.1}\" x2=\"{right}\" y2=\"{at_y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{at_x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            LEFT - 6.0,
            at_y + 4.0,
            label(part * y_max),
            bottom + 16.0,
            label(part * x_max),
        );
    }
    text += &format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
        (LEFT + right) / 2.0,
        bottom + 34.0,
        panel.x
    );
    for (index, (series, colour)) in panel.series.iter().zip(COLOURS).enumerate() {
        let at = LEFT + 60.0 * index as f64;
        if !series.name.is_empty() {
            text += &format!("<rect x=\"{at}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\n");
            text += &format!("<text x=\"{}\" y=\"39\">{}</text>\n", at + 14.0, series.name);
        }
        let line: Vec<String> =
            series.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
        text += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            line.join(" ")
        );
        // A few points are loads that were tried; many are a curve.
        for point in series.points.iter().filter(|_| series.points.len() < STEPS) {
            let (x, y) = (x(point.0), y(point.1));
            text += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n");
        }
    }
    text
}

/// Where an axis ends: the next number of one digit and a half above all values.
fn end(max: f64) -> f64 {
    if max <= 0.0 {
        return 1.0;
    }
    let unit = 10f64.powf(max.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * unit).find(|end| *end >= max).unwrap_or(10.0 * unit)
}

/// Without digits that say nothing.
fn label(value: f64) -> String {
    let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: Vec<(f64, f64)>) -> Panel {
        Panel { title: String::new(), x: String::new(), series: vec![Series { name: "", points }] }
    }

    #[test]
    fn a_value_twice_as_large_is_twice_as_high() {
        let text = draw(&panel(vec![(0.0, 0.0), (1.0, 4.0), (2.0, 8.0)]));
        let line = text.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a line");
        let points: Vec<Vec<f64>> = line
            .split(' ')
            .map(|point| point.split(',').map(|number| number.parse().expect("a number")).collect())
            .collect();
        let height = |index: usize| points[0][1] - points[index][1];
        assert!(height(1) > 0.0 && (height(2) - 2.0 * height(1)).abs() < 0.3, "{points:?}");
        assert!((points[2][0] - WIDTH + RIGHT).abs() < 0.1, "the axis ends at the largest value: {points:?}");
    }

    #[test]
    fn axes_end_at_round_numbers_above_all_values() {
        let ends = [0.0, 1.0, 7.3, 99.0, 101.0, 0.0042].map(end);
        for (got, expected) in ends.into_iter().zip([1.0, 1.0, 8.0, 100.0, 120.0, 0.005]) {
            assert!((got - expected).abs() < 1e-9, "{ends:?}");
        }
        assert_eq!([0.0, 0.25, 2.5, 100.0, 1200.0].map(label), ["0", "0.25", "2.5", "100", "1200"]);
    }

    #[test]
    fn a_panel_without_points_and_a_hostile_title_are_drawn() {
        assert!(!draw(&panel(vec![])).contains("NaN"));
        assert!(svg("a<b>&c", &[]).contains("<title>a&lt;b&gt;&amp;c</title>"));
    }
}
