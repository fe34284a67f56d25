//! Schedulers that look at the packet or at the endpoint, not at load: hashes and orders.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::scheduler::Algorithm;
use vipd_proto::v1::{Feature, Scheduler};

use crate::api::weighted;
use crate::conformance::world::World;
use crate::conformance::{Case, Over, Vantage};

pub(super) const CASES: &[Case] = &[
    Case::new("source_hash_keeps_each_client_at_one_endpoint", Over::All, source_hash).by(&[Algorithm::Sh]),
    Case::new("maglev_keeps_each_client_at_one_endpoint", Over::All, maglev).by(&[Algorithm::Mh]),
    Case::new("maglev_moves_only_clients_of_a_removed_endpoint", Over::Tcp, maglev_removal).by(&[Algorithm::Mh]),
    Case::new("hash_by_source_port_spreads_one_client", Over::Tcp, source_port)
        .by(&[Algorithm::Mh])
        .needs(&[Feature::HashSourcePort]),
    Case::new("destination_hash_keeps_each_address_at_one_endpoint", Over::Tcp, destination_hash).by(&[Algorithm::Dh]),
    Case::new("locality_keeps_an_address_at_one_endpoint_while_it_is_not_busy", Over::Tcp, lblc).by(&[Algorithm::Lblc]),
    Case::new("locality_with_replication_keeps_an_address_in_its_set", Over::Tcp, lblcr).by(&[Algorithm::Lblcr]),
    Case::new("failover_uses_the_highest_weight_that_is_there", Over::All, failover)
        .by(&[Algorithm::Fo])
        .needs(&[Feature::Weight]),
    Case::new("the_scheduler_changes_live", Over::Tcp, changes_live).by(&[Algorithm::Rr, Algorithm::Fo]),
];

const CLIENTS: u16 = 24;

fn source_hash(world: &mut World) -> Result<()> {
    sticks(world, Algorithm::Sh).map(|_| ())
}

fn maglev(world: &mut World) -> Result<()> {
    sticks(world, Algorithm::Mh).map(|_| ())
}

/// Every client stays where it is, Explain names that place, and not all clients are at one.
fn sticks(world: &World, algorithm: Algorithm) -> Result<BTreeMap<IpAddr, String>> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).by(algorithm))?;
    let homes = homes(world, &world.more_clients(CLIENTS)?, to)?;
    for (&source, home) in &homes {
        for _ in 0..2 {
            let again = world.client().from(source).ask(to)?;
            ensure!(again.by() == Some(home), "{source} was at {home}, now {}", again.word());
        }
        let said = world.explain_source(source, Vantage::Client, to)?;
        let pinned = said.candidates.iter().find(|candidate| candidate.pinned).context("Explain pins nobody")?;
        let address = &pinned.endpoint.as_ref().context("a candidate without endpoint")?.address;
        let server = world.servers.iter().find(|server| server.address().ip().to_string() == *address);
        ensure!(server.is_some_and(|server| server.name() == home), "{source}: Explain says {address}, was {home}");
    }
    let used: BTreeSet<&String> = homes.values().collect();
    ensure!(used.len() > 1, "all {CLIENTS} clients are at {used:?}");
    Ok(homes)
}

fn homes(world: &World, clients: &[IpAddr], to: (IpAddr, u16)) -> Result<BTreeMap<IpAddr, String>> {
    clients
        .iter()
        .map(|&source| {
            let outcome = world.client().from(source).ask(to)?;
            Ok((source, outcome.by().with_context(|| format!("{source}: {}", outcome.word()))?.to_owned()))
        })
        .collect()
}

fn maglev_removal(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let before = sticks(world, Algorithm::Mh)?;
    world.api.set_endpoints("web", vec![world.backend(0), world.backend(1)])?;
    let clients: Vec<IpAddr> = before.keys().copied().collect();
    let after = homes(world, &clients, to)?;
    let stayed = before.iter().filter(|(_, home)| *home != "b3");
    let moved = stayed.clone().filter(|(source, home)| after[*source] != **home).count();
    // Maglev's disruption is small, not none (Eisenbud et al., NSDI 2016, 5.3).
    ensure!(moved * 10 <= stayed.count(), "{moved} clients moved that had no reason: {before:?} to {after:?}");
    Ok(())
}

fn source_port(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let scheduler = Scheduler { algorithm: Algorithm::Mh.into(), hash_source_port: true, ..Default::default() };
    let web = world.spec("web").at(to.0, to.1).to(world.backends());
    world.put(&web.with(|service| service.scheduler = Some(scheduler)))?;
    let tally = world.client().ask_many(40, to)?;
    for name in ["b1", "b2", "b3"] {
        ensure!(tally.count(name) > 0, "one client from 40 ports: {tally}");
    }
    // The port is all that differs: the same one leads to the same endpoint.
    let fixed = world.client().port(23_456).abortive().ask_many(6, to)?;
    ensure!(fixed.order().iter().all(|name| *name == fixed.order()[0]), "from one port: {fixed}");
    Ok(())
}

/// The destination decides: the same for every client, another one for another address.
fn destination_hash(world: &mut World) -> Result<()> {
    let addresses: Vec<IpAddr> = (20..44).map(|n| world.vip(n)).collect();
    let spec = addresses.iter().fold(world.spec("web"), |spec, &address| spec.at(address, 80));
    world.put(&spec.to(world.backends()).by(Algorithm::Dh))?;
    let mut used = BTreeSet::new();
    for &address in &addresses {
        let mut tally = world.check(Vantage::Client, (address, 80), 2)?;
        tally.add(&world.from(Vantage::Neighbour).ask((address, 80))?);
        let first = tally.order()[0].clone();
        tally.is_all(&first)?;
        used.insert(first);
    }
    ensure!(used.len() > 1, "all {} addresses lead to {used:?}", addresses.len());
    Ok(())
}

fn lblc(world: &mut World) -> Result<()> {
    one_home(world, Algorithm::Lblc)
}

fn lblcr(world: &mut World) -> Result<()> {
    one_home(world, Algorithm::Lblcr)
}

fn one_home(world: &World, algorithm: Algorithm) -> Result<()> {
    let to = (world.vip(10), 80);
    // Roomy endpoints: a connection that has not quite ended must not count as an overload.
    let endpoints = world.backends().into_iter().map(|endpoint| weighted(endpoint, 100)).collect();
    world.put(&world.spec("web").at(to.0, to.1).to(endpoints).by(algorithm))?;
    let tally = world.check(Vantage::Client, to, 12)?;
    tally.is_all(&tally.order()[0].clone())
}

fn failover(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let all: Vec<_> = (0..3).map(|n| weighted(world.backend(n), 30 - 10 * n as u32)).collect();
    world.put(&world.spec("web").at(to.0, to.1).to(all.clone()).by(Algorithm::Fo))?;
    for gone in 0..3 {
        world.api.set_endpoints("web", all[gone..].to_vec())?;
        world.check(Vantage::Client, to, 8)?.is_all(world.servers[gone].name())?;
    }
    Ok(())
}

fn changes_live(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).by(Algorithm::Rr))?;
    let held = world.hold(6, to)?;
    world.api.set_scheduler("web", Algorithm::Fo)?;
    let tally = world.check(Vantage::Client, to, 6)?;
    tally.is_all(&tally.order()[0].clone())?;
    world.api.set_scheduler("web", Algorithm::Rr)?;
    world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])?;
    for (flow, by) in &held {
        ensure!(flow.ask().by() == Some(by), "a flow at {by} did not survive two changes of scheduler");
    }
    Ok(())
}
