//! A network namespace of the test's own, so that no test ever touches the machine's rule set.
//!
//! As root a thread moves into a new one. Otherwise a user namespace is needed, which the kernel gives to
//! single-threaded processes only: the test binary runs itself again under `unshare --user --net`. Where neither is
//! allowed the test says `SKIPPED: why`, or fails if `VIPD_TESTS_REQUIRE=all`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test support: failing is its business")]

use std::{env, process::Command, thread};

use nix::sched::{CloneFlags, unshare};

/// Set in the copy of the test binary that runs inside a user namespace.
const INSIDE: &str = "VIPD_TEST_IN_NAMESPACE";

/// Runs `test` in a thread with a fresh network namespace whose loopback interface is up.
///
/// # Panics
/// If the test does, or if no namespace can be had and `VIPD_TESTS_REQUIRE=all`.
pub fn in_namespace(test: impl FnOnce() + Send) {
    if env::var_os(INSIDE).is_none() && !nix::unistd::geteuid().is_root() {
        return again_as_root_of_a_user_namespace();
    }
    let outcome = thread::scope(|scope| scope.spawn(|| enter().map(|()| test())).join());
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(why)) => skip(&why),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs a program that must succeed and returns what it printed.
///
/// # Panics
/// If it cannot be run or fails.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Says that a test could not run.
///
/// # Panics
/// If `VIPD_TESTS_REQUIRE=all`.
pub fn skip(why: &str) {
    assert!(env::var("VIPD_TESTS_REQUIRE").as_deref() != Ok("all"), "cannot run, and every ring is required: {why}");
    println!("SKIPPED: {why}");
}

fn enter() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no network namespace: {errno}"))?;
    run("ip", &["link", "set", "lo", "up"]);
    Ok(())
}

fn again_as_root_of_a_user_namespace() {
    // libtest names a test's thread after the test.
    let name = thread::current().name().filter(|name| *name != "main").map(str::to_owned);
    let name = name.expect("run with more than one test thread, or as root");
    let may = Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return skip("neither root nor user namespaces (unshare --user --map-root-user --net)");
    }
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{name} failed inside its user namespace");
}
