//! The scenes. Each prints what it does, does it over the real API, and checks with real packets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::Feature;
use vipd_proto::v1::scheduler::Algorithm;

use super::stage::Stage;
use crate::lab::Family;
use crate::traffic::{Outcome, Proto, Tally};

const THIRDS: [(&str, f64); 3] = [("b1", 1.0), ("b2", 1.0), ("b3", 1.0)];

fn say(text: &str) {
    println!("\n▸ {text}");
}

pub(super) fn node(stage: &Stage) -> Result<()> {
    say("What this node can do");
    stage.vipctl("node", "").map(drop)
}

pub(super) fn declare(stage: &Stage) -> Result<()> {
    say("Two services are declared, and in force when the call returns");
    let mut input = String::new();
    for (name, protocol) in [("web", "TCP"), ("dns", "UDP")] {
        let (v4, port) = Stage::web(Family::V4);
        let (v6, _) = Stage::web(Family::V6);
        input += &format!(
            "service: {{name: {name}, protocol: {protocol}, scheduler: {{algorithm: RR}}, frontends: [\
             {{address: {v4}, port: {port}}}, {{address: \"{v6}\", port: {port}}}]}}\nendpoints:\n"
        );
        for backend in 0..3 {
            for family in [Family::V4, Family::V6] {
                let address = stage.lab.backends[backend].address(family);
                input += &format!("- {{address: \"{address}\", port: 8080}}\n");
            }
        }
        input += if name == "web" { "---\n" } else { "" };
    }
    stage.vipctl("apply -f -", &input)?;
    let listed = stage.vipctl("get", "")?;
    ensure!(listed.contains("web") && listed.contains("dns"), "vipctl get does not list what was applied");
    Ok(())
}

pub(super) fn who_answers(stage: &Stage) -> Result<()> {
    say("A client on another host asks 300 times each: who answers, and how evenly?");
    for (proto, family) in
        [(Proto::Tcp, Family::V4), (Proto::Tcp, Family::V6), (Proto::Udp, Family::V4), (Proto::Udp, Family::V6)]
    {
        let tally = stage.client(proto).ask_many(300, Stage::web(family))?;
        tally.is_in_turn(&THIRDS)?;
        println!("  {proto:?} {family:?}: {tally}; round robin, exact to one");
    }
    Ok(())
}

/// An engine that retries needs no telling; the others are told, and nobody notices either.
pub(super) fn endpoint_goes(stage: &mut Stage) -> Result<()> {
    if stage.engine_info()?.features.contains(&Feature::Retry.into()) {
        endpoint_dies(stage)
    } else {
        endpoint_leaves(stage)
    }
}

fn endpoint_dies(stage: &mut Stage) -> Result<()> {
    say("b2 is killed; vipd is not told. 300 requests:");
    stage.stop_server(1);
    let tally = stage.client(Proto::Tcp).ask_many(300, Stage::web(Family::V4))?;
    ensure!(tally.answered() == 300, "somebody noticed: {tally}");
    ensure!(tally.count("b2") == 0, "a dead back end answered: {tally}");
    println!("  TCP V4: {tally}; nobody noticed");
    stage.start_server(1)?;
    let deadline = Instant::now() + Duration::from_secs(35);
    while stage.client(Proto::Tcp).ask(Stage::web(Family::V4))?.by() != Some("b2") {
        ensure!(Instant::now() < deadline, "b2 is back, and gets nothing");
        thread::sleep(Duration::from_millis(50));
    }
    println!("  b2 is back, and has its share again");
    Ok(())
}

fn endpoint_leaves(stage: &Stage) -> Result<()> {
    say("b2 is taken out and put back, ten times, under traffic");
    let tally = under_traffic(stage, || {
        for round in 0..20 {
            let endpoints: Vec<_> = (0..3).filter(|backend| round % 2 == 1 || *backend != 1).collect();
            let words: Vec<_> = endpoints.into_iter().map(|backend| stage.endpoint(backend, Family::V4)).collect();
            stage.quiet_vipctl(&format!("set-endpoints web {}", words.join(" ")), "")?;
        }
        Ok(())
    })?;
    println!("  TCP V4: {tally}; nobody noticed");
    Ok(())
}

/// Asks all along while something happens; nobody may notice.
fn under_traffic(stage: &Stage, happens: impl FnOnce() -> Result<()>) -> Result<Tally> {
    let running = AtomicBool::new(true);
    let tally = thread::scope(|scope| {
        let background = scope.spawn(|| -> Result<Tally> {
            let mut tally = Tally::default();
            while running.load(Ordering::Relaxed) {
                tally.add(&stage.client(Proto::Tcp).ask(Stage::web(Family::V4))?);
            }
            Ok(tally)
        });
        let happened = happens();
        running.store(false, Ordering::Relaxed);
        let tally = background.join().map_err(|_| anyhow::anyhow!("the background client died"))?;
        happened.and(tally)
    })?;
    ensure!(tally.answered() == tally.total() && tally.total() > 0, "somebody noticed: {tally}");
    Ok(tally)
}

pub(super) fn scheduler_changes(stage: &Stage) -> Result<()> {
    say("Weights and a scheduler are changed live, under traffic");
    let tally = under_traffic(stage, || change(stage))?;
    println!("  meanwhile {} requests, {} failed", tally.total(), tally.total() - tally.answered());
    let tally = stage.client(Proto::Tcp).ask_many(300, Stage::web(Family::V4))?;
    tally.is_drawn_from(&[("b1", 4.0), ("b2", 1.0), ("b3", 1.0)])?;
    println!("  TCP V4: {tally}; by weight 4:1:1");
    Ok(())
}

fn change(stage: &Stage) -> Result<()> {
    let endpoints: Vec<_> = (0..3).map(|backend| stage.endpoint(backend, Family::V4)).collect();
    let line = format!("set-endpoints web {},weight=4 {} {}", endpoints[0], endpoints[1], endpoints[2]);
    stage.vipctl(&line, "")?;
    let known = stage.engine_info()?.algorithms;
    let algorithm = if known.contains(&Algorithm::Wrr.into()) { "WRR" } else { "RANDOM" };
    stage.vipctl(&format!("set-scheduler web {algorithm}"), "")?;
    thread::sleep(Duration::from_millis(300));
    Ok(())
}

pub(super) fn endpoint_drains(stage: &Stage) -> Result<()> {
    say("The back end of a long connection drains");
    let flow = stage.client(Proto::Tcp).open(Stage::web(Family::V4))?;
    let flow = flow.map_err(|outcome| anyhow::anyhow!("no connection: {outcome:?}"))?;
    let by = flow.ask().by().context("no answer on the long connection")?.to_owned();
    let draining: usize = by.trim_start_matches('b').parse::<usize>()? - 1;
    let words: Vec<_> = (0..3)
        .map(|backend| {
            let state = if backend == draining { ",state=DRAINING" } else { "" };
            format!("{}{state}", stage.endpoint(backend, Family::V4))
        })
        .collect();
    stage.vipctl(&format!("set-endpoints web {}", words.join(" ")), "")?;
    let tally = stage.client(Proto::Tcp).ask_many(100, Stage::web(Family::V4))?;
    ensure!(tally.answered() == 100 && tally.count(&by) == 0, "{by} drains, and new flows went: {tally}");
    let outcome = flow.ask();
    ensure!(outcome.by() == Some(by.as_str()), "the long connection broke: {outcome:?}");
    println!("  100 new requests: {tally}; the connection to {by} goes on");
    Ok(())
}

pub(super) fn explain(stage: &Stage) -> Result<()> {
    say("Why does a packet go where it goes?");
    let (to, port) = Stage::web(Family::V4);
    let from = stage.lab.client.address(Family::V4);
    let text = stage.vipctl(&format!("explain {from} {to}:{port} --interface client"), "")?;
    ensure!(text.contains("DRAINING"), "explain does not say why the draining endpoint is out");
    Ok(())
}

pub(super) fn daemon_is_killed(stage: &mut Stage) -> Result<()> {
    say("vipd is killed with SIGKILL and started again; nobody declares anything anew");
    let begin = Instant::now();
    stage.daemon.kill()?;
    if stage.engine == "userspace" {
        stage.start_daemon()?;
    } else {
        let tally = stage.client(Proto::Tcp).ask_many(100, Stage::web(Family::V4))?;
        ensure!(tally.answered() == 100, "the rules serve without the daemon: {tally}");
        println!("  while it is dead, 100 requests: {tally}");
        stage.start_daemon()?;
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let outcome = stage.client(Proto::Tcp).ask(Stage::web(Family::V4))?;
        if matches!(outcome, Outcome::Answered { .. }) {
            break;
        }
        ensure!(Instant::now() < deadline, "not served after the restart: {outcome:?}");
    }
    if stage.engine == "userspace" {
        println!("  the first request is answered {} ms after the kill", begin.elapsed().as_millis());
    }
    let tally = stage.client(Proto::Udp).ask_many(30, Stage::web(Family::V6))?;
    ensure!(tally.answered() == 30, "UDP after the restart: {tally}");
    while stage.quiet_vipctl("get", "")?.contains("PENDING") {
        ensure!(Instant::now() < deadline, "still not in force");
        thread::sleep(Duration::from_millis(20));
    }
    stage.vipctl("get", "").map(drop)
}

pub(super) fn engines_are_switched(stage: &Stage, engines: &[String]) -> Result<()> {
    say("The engine is switched under traffic, with a connection that stays open");
    let flow = stage.client(Proto::Tcp).open(Stage::web(Family::V4))?;
    let flow = flow.map_err(|outcome| anyhow::anyhow!("no connection: {outcome:?}"))?;
    let home = flow.ask().by().context("no answer on the long connection")?.to_owned();
    let tally = under_traffic(stage, || {
        for engine in engines.iter().chain(engines.iter().rev()) {
            stage.vipctl(&format!("node default-engine {engine}"), "")?;
            let outcome = flow.ask();
            ensure!(outcome.by() == Some(home.as_str()), "the long connection broke at {engine}: {outcome:?}");
        }
        Ok(())
    })?;
    println!("  meanwhile {} requests, 0 failed; the connection to {home} goes on", tally.total());
    Ok(())
}
