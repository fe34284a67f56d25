//! What must hold for long and under traffic: kills, flushes, switches, swaps, many flows, other tools' locks.
//!
//! The same trials in a short form (here, in CI) and a long one (`make endurance`); numbers come from the environment:
//! `VIPD_KILLS`, `VIPD_FLUSHES`, `VIPD_SWITCHES`, `VIPD_CONNECTIONS` and `VIPD_SWAPS`, `VIPD_FLOWS`, `VIPD_LOCK_SECONDS`;
//! `VIPD_FULL_TABLE` adds what takes a quarter of a million flows.
//! `ENGINE`: an engine or one variant of it (default: every one that works in the kernel). `VIPD_SEED` repeats the
//! instants of a failed run. Other arguments filter by name. One trial at a time: they measure what clients see.

mod flows;
mod flushes;
mod footprint;
mod kills;
mod locks;
mod swaps;
mod switches;
mod traffic;

use std::env;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, anyhow, ensure};
use vipd_proto::v1::VerifyRequest;
use vipd_tests::api::{Api, Spec, endpoint};
use vipd_tests::conformance::subject::VARIANTS;
use vipd_tests::conformance::world::say;
use vipd_tests::conformance::{Subject, Variant};
use vipd_tests::lab::{Family, Lab, vip};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection, Trial};
use vipd_tests::traffic::{Client, Proto, Server};

fn main() -> ExitCode {
    rings::in_the_lab("endurance", || {
        let named = env::var("ENGINE").unwrap_or_default();
        let variants = if named.is_empty() { in_the_kernel() } else { Variant::named(&named) };
        ensure!(!variants.is_empty(), "no engine is named {named}");
        let (mut subjects, mut exit) = (Vec::new(), ExitCode::SUCCESS);
        for variant in variants {
            match variant.probe() {
                Ok(subject) => subjects.push(subject),
                Err(error) => exit = rings::skip(&format!("endurance of {}: {error:#}", variant.name)),
            }
        }
        let mut trials: Vec<Trial> = subjects.iter().flat_map(of_one).collect();
        trials.push(Trial::new("engines_are_switched_under_traffic", switches::run));
        let finished = runner::run_in_turn(trials, &Selection::from_args());
        let end = runner::conclude(&finished);
        Ok(if exit == ExitCode::SUCCESS { end } else { exit })
    })
}

fn in_the_kernel() -> Vec<Variant> {
    VARIANTS.into_iter().filter(|variant| variant.engine != "userspace").collect()
}

/// The trials that one engine must pass.
fn of_one(subject: &Subject) -> Vec<Trial> {
    type Run = fn(&Subject) -> Result<()>;
    let mut trials: Vec<(&str, Run)> = vec![
        ("endpoints_are_swapped_under_connections", swaps::run),
        ("udp_flows_follow_rolling_endpoints", flows::roll),
    ];
    if env::var_os("VIPD_FULL_TABLE").is_some() {
        trials.push(("a_full_conntrack_table_is_survived", flows::full_table));
    }
    if subject.variant.engine != "userspace" {
        trials.push(("kill_9_under_traffic_fails_no_request", kills::run));
        trials.push(("a_flush_under_traffic", flushes::run));
        trials.push(("sysctls_and_marks_are_left_alone", footprint::settings));
    }
    if subject.variant.engine == "nftables" {
        trials.push(("no_process_is_started", footprint::processes));
    }
    if subject.variant.engine == "iptables" {
        trials.push(("xtables_lock_is_held_by_another", locks::run));
    }
    let trial = |(name, run): (&str, Run)| {
        let subject = subject.clone();
        Trial::new(&format!("{name}/{}", subject.variant.name), move || run(&subject))
    };
    trials.into_iter().map(trial).collect()
}

/// A number from the environment.
fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// xorshift64; the seed is printed.
struct Random(u64);

impl Random {
    fn new() -> Result<Self> {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let seed = number("VIPD_SEED", u64::from(clock.subsec_nanos()) | 1);
        println!("    seed {seed}: VIPD_SEED={seed} repeats it");
        Ok(Self(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The back ends' port.
const PORT: u16 = 8080;
/// The service's name.
const NAME: &str = "web";

/// Where the service is.
fn front() -> (std::net::IpAddr, u16) {
    (vip(Family::V4, 10), 80)
}

/// A server on each back end.
fn servers(lab: &Lab, proto: Proto) -> Result<Vec<Server>> {
    let one = |(n, host): (usize, &vipd_tests::lab::Host)| {
        Server::start(host, &format!("b{}", n + 1), (host.address(Family::V4), PORT), proto)
    };
    let servers: Vec<Server> = lab.backends.iter().enumerate().map(one).collect::<Result<_>>()?;
    // Without vipd's help, so that no neighbour is asked for by the first packet that counts.
    for server in &servers {
        let outcome = Client::new(&lab.client, proto).ask((server.address().ip(), PORT))?;
        ensure!(outcome.by() == Some(server.name()), "the lab is broken: {outcome:?}");
    }
    Ok(servers)
}

/// The service with these back ends.
fn spec(lab: &Lab, proto: Proto, backends: &[usize]) -> Spec {
    let protocol = match proto {
        Proto::Tcp => vipd_proto::v1::Protocol::Tcp,
        Proto::Udp => vipd_proto::v1::Protocol::Udp,
    };
    let endpoints = backends.iter().map(|n| endpoint(lab.backends[*n].address(Family::V4), PORT));
    Spec::new(NAME, protocol).at(front().0, front().1).to(endpoints.collect())
}

/// Declares it, in force.
fn put(api: &Api, spec: &Spec) -> Result<()> {
    api.put(spec).map(|_| ()).map_err(|status| anyhow!("Apply: {}", say(&status)))
}

/// The kernel is as programmed.
fn verify(api: &Api) -> Result<()> {
    let reply = api.wait(api.node().verify(VerifyRequest::default()));
    let reply = reply.map_err(|status| anyhow!("Verify: {}", say(&status)))?.into_inner();
    ensure!(reply.drift.is_empty(), "the kernel is not as the model: {:?}", reply.drift);
    ensure!(reply.objects > 0, "Verify compared nothing");
    Ok(())
}
