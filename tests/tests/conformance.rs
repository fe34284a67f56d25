//! `make conformance ENGINE=nftables`: the suite for one engine or all, their tables, and on request the tables in the
//! docs.
//!
//! `--engine NAME`, or `ENGINE` in the environment: an engine, one variant of it (`iptables-nft`), or `all` (default).
//! `VIPD_DOCS_TABLE`: a Markdown file whose tables are to be rewritten. Other arguments filter by name:
//! `cargo test -p vipd-tests --test conformance -- drain`.

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use vipd_tests::conformance::{Subject, Variant, table, trials};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection};

fn main() -> ExitCode {
    rings::in_the_lab("conformance", inside)
}

fn inside() -> Result<ExitCode> {
    let (name, selection) = arguments();
    let variants = Variant::named(&name);
    ensure!(!variants.is_empty(), "no engine is named {name}");
    let mut exit = ExitCode::SUCCESS;
    for variant in variants {
        let end = match variant.probe() {
            Ok(subject) => suite(&subject, &selection)?,
            Err(error) => rings::skip(&format!("conformance of {}: {error:#}", variant.name)),
        };
        if end != ExitCode::SUCCESS {
            exit = end;
        }
    }
    Ok(exit)
}

fn suite(subject: &Subject, selection: &Selection) -> Result<ExitCode> {
    let name = subject.variant.name;
    println!("\nengine {name}");
    let finished = runner::run(trials(subject), selection);
    if finished.is_empty() {
        return Ok(runner::conclude(&finished));
    }
    println!("\nengine {name}:\n{}", table::render(&finished));
    if let Some(file) = env::var_os("VIPD_DOCS_TABLE") {
        table::write(Path::new(&file), name, &finished)?;
    }
    Ok(runner::conclude(&finished))
}

/// Which engines, and which cases.
fn arguments() -> (String, Selection) {
    let mut words: Vec<String> = env::args().skip(1).collect();
    let named = words.iter().position(|word| word == "--engine").filter(|at| at + 1 < words.len());
    let named = named.and_then(|at| words.drain(at..at + 2).next_back());
    let name = named.or_else(|| env::var("ENGINE").ok()).unwrap_or_else(|| "all".to_owned());
    (name, Selection::from_words(words))
}
