//! Client affinity: one client, one endpoint, while that endpoint is usable.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::Feature;
use vipd_proto::v1::endpoint::State;

use crate::api::in_state;
use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::Family;

pub(super) const CASES: &[Case] = &[
    Case::new("an_affine_client_stays", Over::All, stays).needs(&[Feature::Affinity]),
    Case::new("affinity_is_shared_by_the_frontends_of_a_service", Over::All, shared).needs(&[Feature::Affinity]),
    Case::new("affinity_ends_after_its_timeout", Over::All, times_out)
        .needs(&[Feature::Affinity, Feature::AffinityExactTimeout]),
    Case::new("affinity_can_be_switched_off_live", Over::Tcp, switched_off).needs(&[Feature::Affinity]),
    Case::new("case_087_affinity_leaves_an_endpoint_that_is_not_ready", Over::All, leaves_not_ready)
        .needs(&[Feature::Affinity]),
    Case::new("affinity_leaves_a_removed_endpoint", Over::All, leaves_removed).needs(&[Feature::Affinity]),
    Case::new("affinity_ignores_a_draining_endpoint", Over::All, leaves_draining).needs(&[Feature::Affinity]),
    Case::new("clients_of_one_prefix_are_one_client", Over::All, prefix)
        .needs(&[Feature::Affinity, Feature::AffinityPrefix]),
    Case::new("case_115_affinity_to_an_endpoint_that_refuses_is_given_up", Over::Tcp, refuses)
        .needs(&[Feature::Affinity, Feature::Retry]),
];

/// Declares an affine service and returns where it is and who serves the client.
fn affine(world: &World, seconds: i64) -> Result<((IpAddr, u16), String)> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).affine(seconds))?;
    let first = world.client().ask(to)?;
    Ok((to, first.by().with_context(|| first.word().to_owned())?.to_owned()))
}

fn stays(world: &mut World) -> Result<()> {
    let (to, home) = affine(world, 300)?;
    world.check(Vantage::Client, to, 12)?.is_all(&home)?;
    for vantage in [Vantage::Node, Vantage::Neighbour, Vantage::Backend(1)] {
        let tally = world.from(vantage).ask_many(8, to)?;
        tally.is_all(&tally.order()[0].clone())?;
    }
    // The others' coming did not move the first.
    world.client().ask_many(4, to)?.is_all(&home)
}

fn shared(world: &mut World) -> Result<()> {
    let web = world.spec("web").at(world.vip(10), 80).at(world.vip(11), 81);
    world.put(&web.to(world.backends()).affine(300))?;
    let first = world.client().ask_many(4, (world.vip(10), 80))?;
    let home = first.order()[0].clone();
    first.is_all(&home)?;
    world.client().ask_many(8, (world.vip(11), 81))?.is_all(&home)
}

fn times_out(world: &mut World) -> Result<()> {
    let (to, mut home) = affine(world, 1)?;
    let mut moves = 0;
    for _ in 0..7 {
        thread::sleep(Duration::from_millis(1300));
        let next = world.client().ask(to)?;
        let next = next.by().with_context(|| next.word().to_owned())?.to_owned();
        moves += usize::from(next != home);
        home = next;
    }
    // A fresh pick falls on the same endpoint one time in three at most: seven times running, 1 in 2,187.
    ensure!(moves > 0, "seven pauses longer than the time-out, and always {home}");
    Ok(())
}

fn switched_off(world: &mut World) -> Result<()> {
    let (to, _) = affine(world, 300)?;
    let web = world.spec("web").at(to.0, to.1);
    world.put(&web.clone().to(world.backends()))?;
    world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])?;
    world.put(&web.to(world.backends()).affine(300))?;
    let tally = world.client().ask_many(6, to)?;
    tally.is_all(&tally.order()[0].clone())
}

/// Leaves `home` as told, finds one other home, and does not return while `home` is out.
fn finds_another_home(world: &World, leave: impl Fn(&World, usize) -> Result<()>) -> Result<(IpAddr, u16)> {
    let (to, home) = affine(world, 300)?;
    let index = world.servers.iter().position(|server| server.name() == home).context("a stranger answered")?;
    leave(world, index)?;
    let tally = world.client().ask_many(8, to)?;
    ensure!(tally.count(&home) == 0, "{home} is out and still asked: {tally}");
    tally.is_all(&tally.order()[0].clone())?;
    Ok(to)
}

fn leaves_not_ready(world: &mut World) -> Result<()> {
    finds_another_home(world, |world, index| in_another_state(world, index, State::NotReady)).map(|_| ())
}

fn leaves_draining(world: &mut World) -> Result<()> {
    finds_another_home(world, |world, index| in_another_state(world, index, State::Draining)).map(|_| ())
}

fn in_another_state(world: &World, index: usize, state: State) -> Result<()> {
    let mut endpoints = world.backends();
    endpoints[index] = in_state(endpoints[index].clone(), state);
    Ok(world.api.set_endpoints("web", endpoints)?)
}

fn leaves_removed(world: &mut World) -> Result<()> {
    finds_another_home(world, |world, index| {
        let mut endpoints = world.backends();
        endpoints.remove(index);
        Ok(world.api.set_endpoints("web", endpoints)?)
    })
    .map(|_| ())
}

fn prefix(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let clients = world.more_clients(12)?;
    let whole = |bits: u32| {
        world.spec("web").at(to.0, to.1).to(world.backends()).affine(300).with(|service| {
            if let Some(affinity) = &mut service.client_affinity {
                let prefix = if world.family == Family::V4 { &mut affinity.prefix_v4 } else { &mut affinity.prefix_v6 };
                *prefix = Some(bits);
            }
        })
    };
    world.put(&whole(if world.family == Family::V4 { 24 } else { 64 }))?;
    let ask_all = || clients.iter().map(|&source| world.client().from(source).ask(to)).collect::<Result<_>>();
    let tally: crate::traffic::Tally = ask_all()?;
    tally.is_all(&tally.order()[0].clone()).context("twelve clients of one prefix")
}

/// The endpoint's port is closed: the client is served by another one, and stays there.
fn refuses(world: &mut World) -> Result<()> {
    let (to, home) = affine(world, 300)?;
    world.servers.retain(|server| server.name() != home);
    eventually(Duration::from_secs(2), || {
        let tally = world.client().ask_many(6, to)?;
        ensure!(tally.answered() == 6, "{home} is dead, two others are not: {tally}");
        tally.is_all(&tally.order()[0].clone())
    })
}
