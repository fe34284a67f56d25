//! `make conformance ENGINE=userspace`: the suite for one engine, its table, and on request the table in the docs.
//!
//! `--engine NAME`, or `ENGINE` in the environment: which engine (default `userspace`). `VIPD_DOCS_TABLE`: a Markdown
//! file whose table is to be rewritten. Other arguments filter by name:
//! `cargo test -p vipd-tests --test conformance -- drain`.

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
    let (name, selection) = arguments();
    let engine = probe(&name)?;
    let finished = runner::run(trials(&engine), &selection);
    if finished.is_empty() {
        return Ok(runner::conclude(&finished));
    }
    println!("\nengine {name}:\n{}", table::render(&finished));
    if let Some(file) = env::var_os("VIPD_DOCS_TABLE") {
        table::write(Path::new(&file), &name, &finished)?;
    }
    Ok(runner::conclude(&finished))
}

/// The engine, and which cases.
fn arguments() -> (String, Selection) {
    let mut words: Vec<String> = env::args().skip(1).collect();
    let named = words.iter().position(|word| word == "--engine").filter(|at| at + 1 < words.len());
    let named = named.and_then(|at| words.drain(at..at + 2).next_back());
    let name = named.or_else(|| env::var("ENGINE").ok()).unwrap_or_else(|| "userspace".to_owned());
    (name.to_lowercase(), Selection::from_words(words))
}
