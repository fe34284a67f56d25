//! Another tool holds the lock of iptables: calls are answered in bounded time, traffic is served, and what was accepted
//! comes into force once the lock is free.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use vipd_tests::conformance::Subject;
use vipd_tests::conformance::world::eventually;
use vipd_tests::lab::Lab;
use vipd_tests::traffic::Proto;

use crate::traffic::during;
use crate::{front, number, put, servers, spec, verify};

/// Where iptables has it, without XTABLES_LOCKFILE; `/run` is the sandbox's own.
const LOCK: &str = "/run/xtables.lock";
/// A caller hears of it within this, whatever it hears.
const BOUND: Duration = Duration::from_secs(30);

pub(crate) fn run(subject: &Subject) -> Result<()> {
    let seconds = number("VIPD_LOCK_SECONDS", 4);
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let daemon = subject.variant.start(&lab)?;
    let api = daemon.api()?;
    put(&api, &spec(&lab, Proto::Tcp, &[0]))?;
    during(&lab.client, front(), 1, |traffic| {
        let lock = File::options().create(true).append(true).open(LOCK).context(LOCK)?;
        lock.lock()?;
        let released = thread::spawn(move || {
            thread::sleep(Duration::from_secs(seconds));
            drop(lock);
        });
        let begin = Instant::now();
        let answer = api.put(&spec(&lab, Proto::Tcp, &[1]));
        let took = begin.elapsed();
        println!(
            "    lock held for {seconds} s: answered after {took:.1?}: {}",
            match &answer {
                Ok(_) => "in force".to_owned(),
                Err(status) => vipd_tests::conformance::world::say(status),
            }
        );
        ensure!(took < BOUND, "the caller waited for {took:?}");
        released.join().map_err(|_| anyhow::anyhow!("the holder panicked"))?;
        eventually(Duration::from_secs(20), || verify(&api))?;
        traffic.wait_for(10)?;
        traffic.was_served()
    })
}
