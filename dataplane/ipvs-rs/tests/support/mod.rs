//! For tests on a real kernel: a network namespace of the test's own, or a loud skip.
#![allow(clippy::panic, reason = "helpers of tests, outside of a #[test] function")]
#![allow(dead_code, reason = "not every target uses all of it")]

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{env, thread};

use ipvs_rs::{Error, Ipvs};
use nix::sched::{CloneFlags, unshare};

/// The module is the machine's, not the namespace's: a test that unloads it is alone.
static MODULE: RwLock<()> = RwLock::new(());

/// Runs a test in a thread with a network namespace of its own, loopback up, IPVS there and empty.
pub(crate) fn with_ipvs(test: impl FnOnce(Ipvs) + Send) {
    let _others: RwLockReadGuard<'_, ()> = MODULE.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    in_namespace(test);
}

/// The same while no other test runs.
pub(crate) fn alone_with_ipvs(test: impl FnOnce(Ipvs) + Send) {
    let _alone: RwLockWriteGuard<'_, ()> = MODULE.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    in_namespace(test);
}

fn in_namespace(test: impl FnOnce(Ipvs) + Send) {
    let inside = move || -> Result<(), String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no network namespace: {errno}"))?;
        run("ip", &["link", "set", "lo", "up"]);
        match Ipvs::open() {
            Ok(ipvs) => test(ipvs),
            Err(error @ Error::NoModule) => return Err(error.to_string()),
            Err(error) => panic!("{error}"),
        }
        Ok(())
    };
    match thread::scope(|scope| scope.spawn(inside).join()) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => skip(&why),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Says that a test could not run; fails where none may be skipped.
pub(crate) fn skip(why: &str) {
    assert!(env::var("VIPD_TESTS_REQUIRE").as_deref() != Ok("all"), "cannot run, and every ring is required: {why}");
    println!("SKIPPED: {why}");
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = std::process::Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
}
