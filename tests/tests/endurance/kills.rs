//! `kill -9` at random instants, while endpoints change and clients ask: the kernel serves on, and the next daemon finds
//! the kernel as the model says, or makes it so without a gap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vipd_tests::api::Api;
use vipd_tests::conformance::Subject;
use vipd_tests::lab::Lab;
use vipd_tests::traffic::Proto;

use crate::traffic::{Lasting, during};
use crate::{Random, front, number, put, servers, spec, verify};

/// Two of three: the third still answers connections that it has.
const PAIRS: [[usize; 2]; 3] = [[0, 1], [1, 2], [2, 0]];

pub(crate) fn run(subject: &Subject) -> Result<()> {
    let (mut random, kills) = (Random::new()?, number("VIPD_KILLS", 10));
    let lab = Lab::new()?;
    let _servers = servers(&lab, Proto::Tcp)?;
    let mut daemon = subject.variant.start(&lab)?;
    put(&daemon.api()?, &spec(&lab, Proto::Tcp, &PAIRS[0]))?;
    let lasting: Vec<Lasting> = (0..5).map(|_| Lasting::open(&lab.client, front())).collect::<Result<_>>()?;

    let changes = during(&lab.client, front(), 2, |traffic| {
        let mut changes = 0;
        for kill in 1..=kills {
            let (api, dead) = (daemon.api()?, AtomicBool::new(false));
            let live = Duration::from_micros(random.below(60_000));
            changes += thread::scope(|scope| -> Result<u64> {
                let writer = scope.spawn(|| change_until(&api, &lab, &dead));
                thread::sleep(live);
                daemon.kill()?;
                dead.store(true, Ordering::Relaxed);
                writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))
            })?;
            // The kernel alone.
            traffic.wait_for(5)?;
            daemon = subject.variant.start(&lab).with_context(|| format!("start after kill {kill}"))?;
            verify(&daemon.api()?).with_context(|| format!("kill {kill} after {live:?}"))?;
            traffic.was_served().with_context(|| format!("kill {kill} after {live:?}"))?;
            lasting.iter().try_for_each(Lasting::holds).with_context(|| format!("kill {kill} after {live:?}"))?;
        }
        traffic.was_served()?;
        println!("    {kills} kills, {changes} changes, {} requests, none failed", traffic.served());
        Ok(changes)
    })?;
    ensure!(changes > 0, "no change was ever made: this run showed nothing");
    Ok(())
}

/// Changes the endpoints until the daemon is dead; how often it said that a change is in force.
fn change_until(api: &Api, lab: &Lab, dead: &AtomicBool) -> u64 {
    let mut done = 0;
    while !dead.load(Ordering::Relaxed) {
        let pair = PAIRS[usize::try_from(done % 3).unwrap_or_default()];
        if api.put(&spec(lab, Proto::Tcp, &pair)).is_err() {
            break;
        }
        done += 1;
    }
    done
}
