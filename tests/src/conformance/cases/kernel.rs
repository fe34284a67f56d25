//! What vipd leaves in the kernel, and what others do to it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use vipd_proto::v1::VerifyRequest;

use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::{Family, Host};

pub(super) const CASES: &[Case] = &[
    Case::new("case_026_nobody_answers_arp_for_a_vip", Over::All, no_arp),
    Case::new("case_048_a_flush_of_the_ruleset_is_survived", Over::All, flushed),
    Case::new("cleanup_leaves_nothing_of_ours_and_all_of_the_others", Over::Once, cleanup),
    Case::new("verify_finds_no_drift_after_changes", Over::All, verify),
    Case::new("case_100_repeating_a_call_writes_nothing", Over::Once, repeated),
];

/// In the node's LAN and asked by a neighbour: the VIP is ours to serve, not to announce.
fn no_arp(world: &mut World) -> Result<()> {
    let lan: IpAddr = match world.family {
        Family::V4 => "172.16.2.80".parse()?,
        Family::V6 => "fd10:2::80".parse()?,
    };
    world.put(&world.spec("web").at(lan, 80).at(world.vip(10), 80).to(world.backends()))?;
    for address in [lan, world.vip(10)] {
        let answer = world.lab.neighbour.who_has(address, "eth0")?;
        ensure!(answer.is_none(), "{answer:?} answers for {address}");
    }
    ensure!(world.lab.neighbour.who_has(gateway(world), "eth0")?.is_some(), "the node does not answer for itself");
    Ok(())
}

fn gateway(world: &World) -> IpAddr {
    match world.family {
        Family::V4 => IpAddr::from([172, 16, 2, 1]),
        Family::V6 => "fd10:2::1".parse().unwrap_or(world.address(Vantage::Node)),
    }
}

/// Someone runs `nft flush ruleset`. With owned tables nothing is lost; otherwise it is back in under a second.
fn flushed(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.declare_network()?;
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    world.check(Vantage::Client, to, 3)?;
    world.lab.node.run("nft flush ruleset")?;
    eventually(Duration::from_secs(1), || {
        let outcome = world.client().patience(Duration::from_millis(200)).ask(to)?;
        ensure!(outcome.by().is_some(), "after a flush: {outcome:?}");
        Ok(())
    })?;
    eventually(Duration::from_secs(2), || {
        let refused = world.client().patience(Duration::from_millis(200)).ask((world.vip(10), 22))?;
        ensure!(refused.word() == "refused", "another port of the VIP after a flush: {refused:?}");
        Ok(())
    })
}

fn cleanup(world: &mut World) -> Result<()> {
    world.lab.node.run("nft add table inet foreign")?;
    world.lab.node.run("nft add chain inet foreign keep")?;
    world.daemon.kill()?;
    world.daemon.cleanup(&world.lab)?;
    let before = everything(&world.lab.node)?;
    world.start_again()?;
    world.declare_network()?;
    world.put(&world.spec("web").at(world.vip(10), 80).to(world.backends()))?;
    world.daemon.kill()?;
    world.daemon.cleanup(&world.lab)?;
    let after = everything(&world.lab.node)?;
    ensure!(before == after, "before:\n{before}\nafter:\n{after}");
    ensure!(after.contains("table inet foreign"), "the table of another program is gone");
    Ok(())
}

/// All of the kernel's state that decides where packets go.
fn everything(node: &Host) -> Result<String> {
    let mut all = node.run("nft list ruleset")?;
    for what in ["ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all", "ip addr"] {
        all += &node.run(what)?;
    }
    // Lifetimes and cache entries differ from one look to the next.
    Ok(all.lines().filter(|line| !line.contains("valid_lft")).collect::<Vec<_>>().join("\n"))
}

fn verify(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    for round in 1..=3 {
        world.put(&world.spec("web").at(to.0, to.1).to(world.backends().into_iter().take(round).collect()))?;
    }
    world.put(&world.spec("gone").at(world.vip(11), 80).to(world.backends()))?;
    world.api.delete("gone")?;
    let reply = world.api.wait(world.api.node().verify(VerifyRequest::default()))?.into_inner();
    ensure!(reply.drift.is_empty(), "{:?}", reply.drift);
    Ok(())
}

fn repeated(world: &mut World) -> Result<()> {
    let web = world.spec("web").at(world.vip(10), 80).to(world.backends());
    let first = world.api.put(&web)?.change.unwrap_or_default();
    let second = world.api.put(&web)?.change.unwrap_or_default();
    ensure!(first.changed == Some(true) && second.changed == Some(false), "{first:?} then {second:?}");
    ensure!(first.revision == second.revision, "a call that changed nothing made a revision: {first:?}, {second:?}");
    // The order in which endpoints are sent says nothing.
    let mut turned = world.backends();
    turned.reverse();
    let third = world.api.put(&web.clone().to(turned))?.change.unwrap_or_default();
    ensure!(third.changed == Some(false), "the same endpoints in another order: {third:?}");
    Ok(())
}
