//! Tables: upper-case heads, two spaces between columns, no lines to copy along.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

/// A table under construction. A column that would be empty in every row is left out.
pub(crate) struct Columns {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Columns by their heads.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// One more row, a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, each line indented; nothing at all without rows.
    pub(crate) fn render(&self, indent: &str) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let shown: Vec<usize> = (0..self.heads.len()).filter(|&column| self.is_filled(column)).collect();
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(shown.iter().map(|&column| self.heads[column]));
        for row in &self.rows {
            table.add_row(shown.iter().map(|&column| row.get(column).cloned().unwrap_or_default()));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| format!("{indent}{}\n", line.trim_end())).collect()
    }

    fn is_filled(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_empty_ones_are_left_out() {
        let mut columns = Columns::new(&["NAME", "NOTE", "PORT"]);
        columns.row(["web".to_owned(), String::new(), "80".to_owned()]);
        columns.row(["a-longer-name".to_owned(), String::new(), "8080".to_owned()]);
        assert_eq!(columns.render(" "), " NAME           PORT\n web            80\n a-longer-name  8080\n");
    }

    #[test]
    fn no_rows_no_table() {
        assert_eq!(Columns::new(&["NAME"]).render(""), "");
    }
}
