//! Rows of text in aligned columns.

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// The rows with each column as wide as its widest cell, two blanks between columns, none at the end of lines.
pub fn format<const N: usize>(align: [Align; N], rows: &[[String; N]]) -> String {
    let lines = columns(align, rows);
    lines.iter().map(|cells| format!("{}\n", cells.join("  ").trim_end())).collect()
}

/// The cells, each padded to the width of its column.
pub fn columns<const N: usize>(align: [Align; N], rows: &[[String; N]]) -> Vec<[String; N]> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let padded = |row: &[String; N], column: usize| {
        let (cell, width) = (&row[column], widths[column]);
        match align[column] {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        }
    };
    rows.iter().map(|row| std::array::from_fn(|column| padded(row, column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["op", "n"], ["größe", "100"], ["x", ""]].map(|row| row.map(str::to_string));
        assert_eq!(format([Align::Left, Align::Right], &rows), "op       n\ngröße  100\nx\n");
    }
}
