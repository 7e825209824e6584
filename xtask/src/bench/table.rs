//! The results in markdown.

use super::contest::{COLUMNS, Results, median};

/// A table of ratios with the speeds behind them, and what is needed to read it.
pub(crate) fn markdown(results: &Results) -> String {
    let mut text = format!("| model, format | {} | GB/s | GFLOP/s |\n", COLUMNS.join(" | "));
    text += &format!("|---|{}\n", "---:|".repeat(COLUMNS.len() + 2));
    for row in &results.rows {
        let cells = (0..COLUMNS.len()).map(|column| match (row.ratio(column), row.speeds(column)) {
            (Some(ratio), Some((ours, theirs))) => format!("**{ratio:.2}** ({ours:.1} / {theirs:.1})"),
            _ => "-".to_owned(),
        });
        let rates = [
            rate(&row.gigabytes_per_s, &[&row.read_share]),
            rate(&row.gflop_per_s, &[&row.peak_share, &row.loaded_share]),
        ];
        let cells: Vec<String> = [row.name.to_owned()].into_iter().chain(cells).chain(rates).collect();
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text += &format!(
        "\nOurs ÷ llama.cpp, in brackets the tokens for each second of both; medians of {} rounds. GB/s: what ours reads when \
         decoding at depth 0; GFLOP/s: what it computes of a prompt; in brackets their part of what the machine was measured \
         to do just before and after, of arithmetic first without loads and then with operands from a cache.\n\nMachine: {}\n",
        results.rounds, results.device
    );
    text
}

/// A rate, with its shares in brackets.
fn rate(rates: &[f64], shares: &[&[f64]]) -> String {
    let Some(rate) = median(rates) else { return "-".to_owned() };
    let shares: Vec<String> =
        shares.iter().filter_map(|s| median(s)).map(|share| format!("{:.0} %", share * 100.0)).collect();
    if shares.is_empty() { format!("{rate:.1}") } else { format!("{rate:.1} ({})", shares.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::super::contest::Compared;
    use super::*;

    #[test]
    fn a_cell_has_the_ratio_of_the_medians_and_both_speeds() {
        let row = Compared {
            name: "tiny",
            ours: [vec![10.0, 30.0, 20.0], vec![], vec![6.0], vec![1.0]],
            theirs: [vec![4.0, 8.0, 100.0], vec![1.0], vec![4.0], vec![2.0]],
            gigabytes_per_s: vec![25.04],
            gflop_per_s: vec![1000.0],
            read_share: vec![0.7, 0.9, 0.8],
            peak_share: vec![0.25],
            loaded_share: vec![0.5],
        };
        let text = markdown(&Results { device: "a machine".to_owned(), rounds: 3, rows: vec![row] });
        let lines: Vec<&str> = text.lines().collect();
        let cells = "**2.50** (20.0 / 8.0) | - | **1.50** (6.0 / 4.0) | **0.50** (1.0 / 2.0) | 25.0 (80 %) | 1000.0 (25 %, 50 %)";
        assert_eq!(lines[2], format!("| tiny | {cells} |"));
        let bars = |line: &str| line.matches('|').count();
        assert!(bars(lines[0]) == bars(lines[1]) && bars(lines[1]) == bars(lines[2]), "{text}");
        assert!(text.contains("medians of 3 rounds") && text.ends_with("Machine: a machine\n"), "{text}");
    }
}
