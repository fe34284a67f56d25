//! `make conformance ENGINE=userspace`: the suite for one engine, its table, and on request the table in the docs.
//!
//! `ENGINE`: which engine (default `userspace`). `VIPD_DOCS_TABLE`: a Markdown file whose table is to be rewritten.
//! Arguments filter by name: `cargo test -p vipd-tests --test conformance -- drain`.

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use vipd_tests::conformance::{probe, table, trials};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection};

fn main() -> ExitCode {
    rings::in_the_lab("conformance", inside)
}

fn inside() -> Result<ExitCode> {
    let name = env::var("ENGINE").unwrap_or_else(|_| "userspace".to_owned()).to_lowercase();
    let engine = probe(&name)?;
    let finished = runner::run(trials(&engine), &Selection::from_args());
    println!("\nengine {name}:\n{}", table::render(&finished));
    if let Some(file) = env::var_os("VIPD_DOCS_TABLE") {
        table::write(Path::new(&file), &name, &finished)?;
    }
    Ok(runner::conclude(&finished))
}
