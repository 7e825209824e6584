//! The ratios as bars, one group for each row, with a line where both are equally fast.

use super::contest::{COLUMNS, Results};

const COLOURS: [&str; COLUMNS.len()] = ["#4269d0", "#efb118", "#3ca951", "#a463f2"];
const BAR: f64 = 16.0;
const GROUP: f64 = BAR * COLUMNS.len() as f64 + 14.0;
const LEFT: f64 = 330.0;
const WIDTH: f64 = 900.0;
const TOP: f64 = 40.0;

pub(crate) fn svg(results: &Results) -> String {
    let ratios =
        results.rows.iter().flat_map(|row| (0..COLUMNS.len()).filter_map(|column| row.ratio(column)));
    let scale = (WIDTH - LEFT - 60.0) / ratios.fold(1.0, f64::max);
    let height = TOP + GROUP * results.rows.len() as f64 + 10.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>Speed of mlxcel ÷ speed of llama.cpp</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, (column, colour)) in COLUMNS.iter().zip(COLOURS).enumerate() {
        let x = LEFT + 140.0 * index as f64;
        text += &format!("<rect x=\"{x}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n");
        text += &format!("<text x=\"{}\" y=\"22\">{column}</text>\n", x + 16.0);
    }
    for (index, row) in results.rows.iter().enumerate() {
        let top = TOP + GROUP * index as f64;
        let middle = top + GROUP / 2.0;
        text +=
            &format!("<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\n", LEFT - 8.0, row.name);
        for (column, colour) in COLOURS.iter().enumerate() {
            let Some(ratio) = row.ratio(column) else { continue };
            let (y, width) = (top + BAR * column as f64, ratio * scale);
            text += &format!(
                "<rect class=\"bar\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{}\">{ratio:.2}</text>\n",
                BAR - 2.0,
                LEFT + width + 4.0,
                y + BAR - 4.0,
            );
        }
    }
    let (one, bottom) = (LEFT + scale, height - 6.0);
    text += &format!(
        "<line x1=\"{one:.1}\" y1=\"{}\" x2=\"{one:.1}\" y2=\"{bottom}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>\n</svg>\n",
        TOP - 6.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::contest::Compared;
    use super::*;

    #[test]
    fn every_ratio_has_a_bar_as_long_as_it_is_large() {
        let row = Compared {
            name: "tiny",
            ours: [vec![4.0], vec![2.0], vec![1.0], vec![]],
            theirs: [vec![1.0], vec![1.0], vec![1.0], vec![1.0]],
            ..Compared::default()
        };
        let text = svg(&Results { rows: vec![row], ..Results::default() });
        let width = |line: &str| line.split("width=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        let bars: Vec<f64> = text.lines().filter(|l| l.contains("class=\"bar\"")).filter_map(width).collect();
        assert_eq!(bars.len(), 3);
        assert!((bars[0] - 4.0 * bars[2]).abs() < 0.3 && (bars[1] - 2.0 * bars[2]).abs() < 0.3, "{bars:?}");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
