//! What happens when things go wrong: the daemon killed at any instruction, no descriptors left.
//!
//! `ENGINE`: which engine (default `userspace`). `VIPD_KILLS`: how often the daemon is killed under writing clients
//! (default 25; 1,000 takes minutes). `VIPD_SEED`: repeats the instants of a failed run.

use std::collections::BTreeMap;
use std::env;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::scheduler::Algorithm;
use vipd_proto::v1::{Endpoint, Protocol};
use vipd_tests::api::{Api, Spec, endpoint};
use vipd_tests::conformance::world::eventually;
use vipd_tests::lab::{Daemon, Family, Lab, vip};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection, Trial};
use vipd_tests::traffic::http::get;
use vipd_tests::traffic::{Client, Flow, Proto, Server};

fn main() -> ExitCode {
    rings::in_the_lab("faults", || {
        let trials = vec![
            Trial::new("kill_9_under_writing_clients_loses_nothing_acknowledged", kills),
            Trial::new("case_106_at_256_descriptors_the_rest_is_shed_and_it_recovers", few_descriptors),
        ];
        Ok(runner::conclude(&runner::run(trials, &Selection::from_args())))
    })
}

fn engine() -> String {
    env::var("ENGINE").unwrap_or_else(|_| "userspace".to_owned()).to_lowercase()
}

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Each writer owns a pair of services and writes the same serial number into both, in one atomic call.
const WRITERS: usize = 4;

/// How far a writer came: the last serial that was acknowledged, and the last that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    acknowledged: u64,
    sent: u64,
}

fn kills() -> Result<()> {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = number("VIPD_SEED", u64::from(clock.subsec_nanos()) | 1);
    println!("    seed {seed}: VIPD_SEED={seed} repeats it");
    let lab = Lab::new()?;
    let mut random = seed;
    let mut daemon = Daemon::start(&lab, &engine(), &[])?;
    let mut progress = [Progress::default(); WRITERS];
    for kill in 1..=number("VIPD_KILLS", 25) {
        // xorshift64: any instant between "at once" and "in the middle of a hundred writes".
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let live = Duration::from_micros(random % 60_000);
        progress = write_until_killed(&mut daemon, live, progress)?;
        daemon = Daemon::start(&lab, &engine(), &[]).with_context(|| format!("start after kill {kill}"))?;
        let api = daemon.api()?;
        for (writer, progress) in progress.iter_mut().enumerate() {
            *progress = check(&api, writer, *progress).with_context(|| format!("kill {kill} after {live:?}"))?;
        }
    }
    let written: u64 = progress.iter().map(|progress| progress.acknowledged).sum();
    println!("    {written} acknowledged changes, none lost, none half");
    ensure!(written > 0, "nothing was ever acknowledged: this run showed nothing");
    Ok(())
}

fn write_until_killed(daemon: &mut Daemon, live: Duration, from: [Progress; WRITERS]) -> Result<[Progress; WRITERS]> {
    let dead = AtomicBool::new(false);
    let apis: Vec<Api> = (0..WRITERS).map(|_| daemon.api()).collect::<Result<_>>()?;
    let reached = Mutex::new(from);
    thread::scope(|scope| {
        for (writer, api) in apis.iter().enumerate() {
            let (dead, reached) = (&dead, &reached);
            scope.spawn(move || {
                let mut own = from[writer];
                while !dead.load(Ordering::Relaxed) {
                    own.sent += 1;
                    let operations = ["a", "b"].map(|half| pair(writer, half, own.sent));
                    let operations = operations.iter().flat_map(|spec| [spec.upsert(), spec.set_endpoints()]);
                    if api.apply(operations.collect()).is_err() {
                        break;
                    }
                    own.acknowledged = own.sent;
                }
                if let Ok(mut reached) = reached.lock() {
                    reached[writer] = own;
                }
            });
        }
        thread::sleep(live);
        let killed = daemon.kill();
        dead.store(true, Ordering::Relaxed);
        killed
    })?;
    reached.into_inner().map_err(|_| anyhow::anyhow!("a writer panicked"))
}

/// One of a writer's two services, with a serial number in every part of it.
fn pair(writer: usize, half: &str, serial: u64) -> Spec {
    let to = vip(Family::V4, 10 + writer as u8);
    let port = if half == "a" { 80 } else { 81 };
    let labelled =
        |n: u8| Endpoint { target: serial.to_string(), ..endpoint(std::net::IpAddr::from([10, 1, 1, n]), 8080) };
    Spec::new(&format!("{writer}-{half}"), Protocol::Tcp)
        .at(to, port)
        .to(vec![labelled(2), labelled(3)])
        .with(|service| service.labels = [("serial".to_owned(), serial.to_string())].into())
}

/// Both halves hold one serial, throughout, and it is no older than what was acknowledged.
fn check(api: &Api, writer: usize, progress: Progress) -> Result<Progress> {
    let mut seen = BTreeMap::new();
    for half in ["a", "b"] {
        let Ok(reply) = api.get(&format!("{writer}-{half}")) else {
            ensure!(progress.acknowledged == 0, "writer {writer}: {half} is gone, acknowledged {progress:?}");
            seen.insert(0, half);
            continue;
        };
        let labels = reply.service.unwrap_or_default().labels;
        let serial: u64 = labels.get("serial").context("a service without its label")?.parse()?;
        let targets: Vec<&str> = reply.endpoints.iter().map(|endpoint| endpoint.target.as_str()).collect();
        ensure!(targets == [serial.to_string(), serial.to_string()], "{half}: label {serial}, endpoints {targets:?}");
        seen.insert(serial, half);
    }
    ensure!(seen.len() == 1, "writer {writer}: one half is newer than the other: {seen:?}");
    let serial = seen.into_keys().next().unwrap_or_default();
    let possible = progress.acknowledged..=progress.sent;
    ensure!(possible.contains(&serial), "writer {writer}: found {serial}, possible {possible:?}");
    Ok(Progress { acknowledged: serial, sent: serial })
}

/// With 256 descriptors and 2,000 clients: who is in stays in, the rest is turned away, and afterwards all is well.
fn few_descriptors() -> Result<()> {
    const CLIENTS: usize = 2000;
    let lab = Lab::new()?;
    let mut daemon = Daemon::start_with_descriptors(&lab, &engine(), 256)?;
    let api = daemon.api()?;
    let b1 = &lab.backends[0];
    let _server = Server::start(b1, "b1", (b1.address(Family::V4), 8080), Proto::Tcp)?;
    let to = (vip(Family::V4, 10), 80);
    let web = Spec::new("web", Protocol::Tcp).at(to.0, to.1).by(Algorithm::Rr);
    api.put(&web.to(vec![endpoint(b1.address(Family::V4), 8080)]))?;

    let client = Client::new(&lab.client, Proto::Tcp).patience(Duration::from_millis(1500));
    let first = open(&client, to, 20)?;
    ensure!(first.len() == 20, "20 clients are no crowd, yet only {} were served", first.len());
    let client = client.patience(Duration::from_millis(400));
    let crowd = thread::scope(|scope| -> Result<Vec<Flow>> {
        let parts: Vec<_> = (0..20).map(|_| scope.spawn(|| open(&client, to, (CLIENTS - 20) / 20))).collect();
        let parts = parts.into_iter().map(|part| part.join().map_err(|_| anyhow::anyhow!("a client panicked"))?);
        Ok(parts.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })?;
    println!("    of {CLIENTS} clients {} are served at 256 descriptors", first.len() + crowd.len());
    ensure!(daemon.is_alive(), "vipd died:\n{}", daemon.log_tail());
    ensure!(crowd.len() < CLIENTS - 20, "nobody was turned away: this run showed nothing");
    for flow in first.iter().chain(&crowd) {
        let outcome = flow.ask();
        ensure!(outcome.by() == Some("b1"), "an established connection was lost: {outcome:?}");
    }
    // Nothing to do, so nothing is done: accept must not be retried without pause (case 107).
    let before = daemon.processor_time()?;
    thread::sleep(Duration::from_secs(1));
    let used = daemon.processor_time()? - before;
    ensure!(used < Duration::from_millis(300), "{used:?} of processor time in one idle second at the limit");
    let findings = api.info().context("the control API was starved of descriptors")?.findings;
    let said = findings.iter().any(|finding| finding.message.contains("descriptors"));
    ensure!(said, "clients are turned away, and GetInfo does not say so: {findings:?}");
    let metrics = get(&Client::new(&lab.node, Proto::Tcp), ("127.0.0.1".parse()?, 9464), "/metrics")?.body;
    let shed = metrics.lines().find(|line| line.starts_with("vipd_proxy_shed_total{what=\"connections\"}"));
    let shed: u64 = shed.and_then(|line| line.rsplit(' ').next()?.parse().ok()).context("no metric of shed flows")?;
    println!("    {shed} were turned away, and counted");
    ensure!(shed > 0, "clients were turned away, and nobody counted them");

    drop((first, crowd));
    let client = client.patience(Duration::from_secs(2));
    eventually(Duration::from_secs(5), || {
        let again = open(&client, to, 20)?;
        ensure!(again.len() == 20, "recovered for {} of 20", again.len());
        Ok(())
    })
}

/// Opens flows and keeps those that were answered.
fn open(client: &Client<'_>, to: (std::net::IpAddr, u16), count: usize) -> Result<Vec<Flow>> {
    let mut served = Vec::new();
    for _ in 0..count {
        if let Ok(flow) = client.open(to)?
            && flow.ask().by().is_some()
        {
            served.push(flow);
        }
    }
    Ok(served)
}
