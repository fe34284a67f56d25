//! The suite's result as a table: case × family × protocol, for people and for `docs/engines.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::COLUMNS;
use crate::runner::{Finished, Verdict};

/// One engine's table in Markdown. Cases that did not run are left out.
#[must_use]
pub fn render(finished: &[Finished]) -> String {
    let mut rows: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for end in finished {
        let Some((case, column)) = end.name.split_once('/') else { continue };
        rows.entry(case).or_default().insert(column, cell(end));
    }
    let mut text = format!("| case | {} |\n|---|---|---|---|---|\n", COLUMNS.map(|(_, _, name)| name).join(" | "));
    for (case, cells) in rows {
        let cells = COLUMNS.map(|(_, _, name)| cells.get(name).map_or("", String::as_str));
        let _ = writeln!(text, "| {} | {} |", case.replace('_', " "), cells.join(" | "));
    }
    text
}

fn cell(end: &Finished) -> String {
    match &end.result {
        Ok(Verdict::Passed) => "pass".to_owned(),
        Ok(Verdict::Excused(lacking)) => format!("excused ({lacking})"),
        Err(_) => "**FAIL**".to_owned(),
    }
}

/// Replaces an engine's table in a Markdown file, between its two marker comments.
///
/// # Errors
/// When the file or the markers are missing.
pub fn write(file: &Path, engine: &str, finished: &[Finished]) -> Result<()> {
    let (begin, end) = (format!("<!-- conformance {engine} -->\n"), format!("<!-- /conformance {engine} -->"));
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let missing = || format!("{} has no section {begin}{end}", file.display());
    let (before, rest) = text.split_once(&begin).with_context(missing)?;
    let (_, after) = rest.split_once(&end).with_context(missing)?;
    fs::write(file, format!("{before}{begin}{}{end}{after}", render(finished)))?;
    Ok(())
}
