//! Rows of text in aligned columns.

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// The rows with each column as wide as its widest cell, two blanks between columns, none at the end of lines.
pub fn format<const N: usize>(align: [Align; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut table = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).zip(align).map(|((cell, width), align)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
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
