//! The rings of TESTING.md: what each runs, and one line for each at the end.
//!
//! A test that this machine cannot run prints `SKIPPED: why` and passes; with `VIPD_TESTS_REQUIRE=all` it fails
//! instead. `make test` is `cargo run -p vipd-tests --bin rings`: it runs ring by ring, innermost first, and its lines
//! say which ring ran, how many tests passed, and each reason for which something was skipped.

use std::collections::BTreeSet;
use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::lab::{installed, sandbox};

/// `all`: no test may skip itself.
const REQUIRE: &str = "VIPD_TESTS_REQUIRE";
/// How a skipped test says so, at the beginning of a line.
const SKIPPED: &str = "SKIPPED: ";

/// One ring: tests that need the same of the machine.
#[derive(Debug)]
pub struct Ring {
    /// As TESTING.md calls it.
    pub name: &'static str,
    /// What it needs and looks at, for the line.
    pub about: &'static str,
    /// What cargo is asked to do.
    pub cargo: &'static [&'static str],
}

/// All rings that this repository has, innermost first.
pub const RINGS: [Ring; 3] = [
    Ring {
        name: "pure",
        about: "model, engine, render and plan, clients; kernel pieces in a namespace of their own",
        cargo: &["test", "--workspace", "--exclude", "vipd", "--exclude", "vipd-tests"],
    },
    Ring {
        name: "in process",
        about: "the daemon: store, reconciler, the gRPC server on the fake and the chaos engine",
        cargo: &["test", "--package", "vipd"],
    },
    Ring {
        name: "lab",
        about: "hosts as network namespaces, a real vipd, real traffic; real clients",
        cargo: &["test", "--package", "vipd-tests"],
    },
];

/// What the lab runs beside its tests; cargo does not build another crate's programs for a test.
const PROGRAMS: &[&str] = &["build", "--quiet", "--package", "vipd", "--package", "vipctl", "--bins"];

/// True when nothing may be skipped.
#[must_use]
pub fn all_required() -> bool {
    env::var(REQUIRE).is_ok_and(|value| value == "all")
}

/// Runs a target that needs the lab; where there can be none, skips loudly, or fails if nothing may be skipped.
pub fn in_the_lab(target: &str, inside: impl FnOnce() -> Result<ExitCode>) -> ExitCode {
    sandbox::run(inside).unwrap_or_else(|sandbox::Unavailable(why)| skip(&format!("{target}: {why}")))
}

/// Runs what needs a program of another project; where that is not installed, skips loudly, or fails if nothing may be
/// skipped. `tests/peers.sh` installs them all.
///
/// # Errors
/// Those of `inside`.
pub fn with_peer(program: &str, inside: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode> {
    match installed(program) {
        Ok(_) => inside(),
        Err(why) => Ok(skip(&format!("{why}: run tests/peers.sh"))),
    }
}

/// Says loudly that something cannot run here; fails if nothing may be skipped.
#[must_use]
pub fn skip(why: &str) -> ExitCode {
    if all_required() {
        eprintln!("{why}; and {REQUIRE}=all allows no skipping");
        return ExitCode::FAILURE;
    }
    println!("{SKIPPED}{why}");
    ExitCode::SUCCESS
}

/// What one ring came to.
struct Line {
    ok: bool,
    passed: u64,
    failed: u64,
    excused: u64,
    skipped: BTreeSet<String>,
}

/// Runs every ring and prints its line. The output of a ring that passes is not shown, that of one that fails is.
///
/// # Errors
/// When cargo cannot be run.
pub fn run_all() -> Result<ExitCode> {
    ensure!(cargo().args(PROGRAMS).status().context("running cargo")?.success(), "cargo {PROGRAMS:?} failed");
    let mut lines = Vec::new();
    let (mut ok, mut passed, mut failed) = (true, 0, 0);
    for ring in &RINGS {
        let begin = Instant::now();
        let line = run(ring)?;
        ok &= line.ok;
        passed += line.passed;
        failed += line.failed.max(u64::from(!line.ok));
        lines.push(describe(ring, &line, begin.elapsed().as_secs()));
        println!("{}", lines[lines.len() - 1]);
    }
    println!("\nrings:\n{}\n", lines.join("\n"));
    println!("{passed} passed, {failed} failed");
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run(ring: &Ring) -> Result<Line> {
    // Passing tests keep their output to themselves unless told otherwise; a skip must be heard.
    let output = cargo()
        .args(ring.cargo)
        .args(["--no-fail-fast", "--", "--show-output"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = read(&text, output.status.success());
    if !line.ok {
        print!("{text}");
    }
    Ok(line)
}

/// Reads what the harnesses printed.
fn read(text: &str, succeeded: bool) -> Line {
    let mut line = Line { ok: succeeded, passed: 0, failed: 0, excused: 0, skipped: BTreeSet::new() };
    for row in text.lines().map(str::trim) {
        if let Some(why) = row.strip_prefix(SKIPPED) {
            line.skipped.insert(why.to_owned());
        }
        if row.starts_with("test result: ") {
            line.passed += before(row, " passed");
            line.failed += before(row, " failed");
            line.excused += before(row, " excused");
        }
    }
    // A skip that slipped through (printed by a test that does not know the rule) is a failure of the ring.
    line.ok &= line.skipped.is_empty() || !all_required();
    line
}

/// The number that stands before a word.
fn before(row: &str, word: &str) -> u64 {
    row.split_once(word).and_then(|(left, _)| left.rsplit([' ', ';']).next()?.parse().ok()).unwrap_or(0)
}

fn describe(ring: &Ring, line: &Line, seconds: u64) -> String {
    let state = match (line.ok, line.passed, line.skipped.is_empty()) {
        (false, ..) => "FAILED ",
        (true, 0, false) => "skipped",
        (true, ..) => "ran    ",
    };
    let mut text = format!("  {:<11}{state} {:>5} passed", ring.name, line.passed);
    if line.excused > 0 {
        text += &format!(", {} excused by a Feature", line.excused);
    }
    text += &format!(" in {seconds} s: {}", ring.about);
    for why in &line.skipped {
        text += &format!("\n             skipped: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
        test a ... ok\nSKIPPED: lab: no user namespaces\n\
        test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
        test result: ok. 7 passed; 0 failed; 2 excused\n";

    #[test]
    fn counts_both_harnesses_and_hears_a_skip() {
        let line = read(PRINTED, true);
        assert_eq!((line.passed, line.excused), (19, 2));
        assert!(line.skipped.contains("lab: no user namespaces"));
    }

    #[test]
    fn a_ring_that_only_skipped_did_not_run() {
        let line = read("SKIPPED: lab: no user namespaces", true);
        assert!(describe(&RINGS[2], &line, 1).contains("skipped"));
    }
}
