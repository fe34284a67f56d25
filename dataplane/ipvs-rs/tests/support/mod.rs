//! For tests on a real kernel: a network namespace of the test's own, or a loud skip.
#![allow(clippy::panic, reason = "helpers of tests, outside of a #[test] function")]
#![allow(dead_code, reason = "not every target uses all of it")]

use std::sync::Mutex;
use std::{env, thread};

use ipvs_rs::{Error, Ipvs};
use nix::sched::{CloneFlags, unshare};

/// Module and tables are the machine's: what another namespace deletes makes a dump here miss entries, too. So one test at
/// a time.
static KERNEL: Mutex<()> = Mutex::new(());

/// Runs a test in a thread with a network namespace of its own, loopback up, IPVS there and empty.
pub(crate) fn with_ipvs(test: impl FnOnce(Ipvs) + Send) {
    let _alone = KERNEL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let inside = move || -> Result<(), String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no network namespace: {errno}"))?;
        run("ip", &["link", "set", "lo", "up"]);
        match Ipvs::open() {
            Ok(ipvs) => test(ipvs),
            Err(error @ Error::NoModule) => return Err(error.to_string()),
            Err(error) => panic!("{error}"),
        }
        // A namespace goes when the kernel has time for it, which would be in the middle of the next test.
        Ipvs::open().and_then(|mut ipvs| ipvs.flush()).map_err(|error| error.to_string())
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
