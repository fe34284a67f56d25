//! Ranges of ports, of sources, and of virtual addresses.

use std::time::Duration;

use anyhow::{Result, ensure};
use vipd_proto::v1::explain_response::Verdict;
use vipd_proto::v1::{Feature, Frontend};

use crate::api::{at, endpoint};
use crate::conformance::world::{EVERYWHERE, World};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::Family;
use crate::traffic::{Client, Server};

pub(super) const CASES: &[Case] = &[
    Case::new("a_range_of_ports_keeps_the_port", Over::All, port_range).needs(&[Feature::PortRange]),
    Case::new("a_port_range_may_grow_and_shrink", Over::All, range_changes).needs(&[Feature::PortRange]),
    Case::new("source_ranges_let_in_only_their_own", Over::All, source_ranges).needs(&[Feature::SourceRanges]),
    Case::new("case_029_source_ranges_hold_for_one_frontend_only", Over::All, one_frontend_only)
        .needs(&[Feature::SourceRanges]),
    Case::new("case_083_source_ranges_hold_for_the_node_and_for_endpoints", Over::All, inside_too)
        .needs(&[Feature::SourceRanges]),
    Case::new("source_ranges_drop_before_a_refusal", Over::All, before_refusal).needs(&[Feature::SourceRanges]),
    Case::new("case_024_other_ports_of_a_vip_are_refused_in_virtual_ranges", Over::All, other_ports),
    Case::new("addresses_that_nobody_holds_are_refused_in_virtual_ranges", Over::All, unknown_addresses),
    Case::new("case_025_other_ports_are_left_alone_outside_virtual_ranges", Over::All, left_alone),
    Case::new("case_024_no_daemon_of_the_node_answers_on_a_vip", Over::All, host_daemons),
];

/// What the client's own network is called.
const fn clients_network(family: Family) -> &'static str {
    match family {
        Family::V4 => "172.16.1.0/24",
        Family::V6 => "fd10:1::/64",
    }
}

fn port_range(world: &mut World) -> Result<()> {
    let address = world.vip(10);
    let range = Frontend { port_end: 8010, ..at(address, 8001) };
    let endpoints = (0..2).map(|n| endpoint(world.address(Vantage::Backend(n)), 0)).collect();
    world.put(&world.spec("media").frontend(range).to(endpoints))?;
    for port in [8001, 8005, 8010] {
        let servers = [world.server(0, port)?, world.server(1, port)?];
        let tally = world.client().ask_many(24, (address, port))?;
        let answered = tally.count("b1") + tally.count("b2");
        ensure!(answered == 24 && tally.count("b1") > 0 && tally.count("b2") > 0, "port {port}: {tally}");
        drop(servers);
    }
    for (port, inside) in [(8000, false), (8001, true), (8010, true), (8011, false)] {
        let verdict = world.explain(Vantage::Client, (address, port))?.verdict();
        ensure!((verdict == Verdict::Forwarded) == inside, "port {port}: {verdict:?}");
    }
    Ok(())
}

fn range_changes(world: &mut World) -> Result<()> {
    let address = world.vip(10);
    let servers = [world.server(0, 8001)?, world.server(0, 8002)?, world.server(0, 8003)?];
    let endpoints = vec![endpoint(world.address(Vantage::Backend(0)), 0)];
    world.declare_network()?;
    for last in [8002, 8003, 8002] {
        let range = Frontend { port_end: last, ..at(address, 8001) };
        world.put(&world.spec("media").frontend(range).to(endpoints.clone()))?;
        for server in &servers {
            let port = server.address().port();
            let expected = if u32::from(port) <= last { "b1" } else { "refused" };
            world.client().ask_many(2, (address, port))?.is_all(expected)?;
        }
    }
    Ok(())
}

fn restricted(world: &World, port: u16) -> Frontend {
    let ranges = vec![clients_network(world.family).to_owned()];
    Frontend { source_ranges: ranges, ..at(world.vip(10), port) }
}

fn source_ranges(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").frontend(restricted(world, 80)).to(world.backends()))?;
    world.check_is(Vantage::Client, to, Verdict::Forwarded)?;
    world.check_is(Vantage::Neighbour, to, Verdict::Dropped)?;
    // Opened to everybody, and closed again.
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    world.check_is(Vantage::Neighbour, to, Verdict::Forwarded)?;
    world.put(&world.spec("web").frontend(restricted(world, 80)).to(world.backends()))?;
    world.check_is(Vantage::Neighbour, to, Verdict::Dropped)
}

/// A second service on the same address, without ranges, is open; changing it does not open the first.
fn one_frontend_only(world: &mut World) -> Result<()> {
    let (closed, open) = ((world.vip(10), 7001), (world.vip(10), 8001));
    world.put(&world.spec("closed").frontend(restricted(world, 7001)).to(world.backends()))?;
    for round in 0..4 {
        let endpoints = world.backends().into_iter().take(1 + round % 3).collect();
        world.put(&world.spec("open").at(open.0, open.1).to(endpoints))?;
        world.check_is(Vantage::Neighbour, open, Verdict::Forwarded)?;
        let denied = world.from(Vantage::Neighbour).patience(Duration::from_millis(300)).ask(closed)?;
        ensure!(denied.word() == "timed out", "the closed one, after a change of the other: {denied:?}");
    }
    world.check_is(Vantage::Client, closed, Verdict::Forwarded)
}

fn inside_too(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let to = (world.vip(10), 80);
    let elsewhere = match world.family {
        Family::V4 => "198.51.100.0/24",
        Family::V6 => "2001:db8::/32",
    };
    let frontend = Frontend { source_ranges: vec![elsewhere.to_owned()], ..at(to.0, to.1) };
    world.put(&world.spec("web").frontend(frontend).to(world.backends()))?;
    for vantage in EVERYWHERE {
        world.check_is(vantage, to, Verdict::Dropped)?;
    }
    Ok(())
}

fn before_refusal(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").frontend(restricted(world, 80)))?;
    world.check_is(Vantage::Client, to, Verdict::Rejected)?;
    world.check_is(Vantage::Neighbour, to, Verdict::Dropped)
}

fn other_ports(world: &mut World) -> Result<()> {
    world.declare_network()?;
    world.put(&world.spec("web").at(world.vip(10), 80).to(world.backends()))?;
    for vantage in EVERYWHERE {
        world.check_is(vantage, (world.vip(10), 22), Verdict::Rejected)?;
        world.check_is(vantage, (world.vip(10), 80), Verdict::Forwarded)?;
    }
    Ok(())
}

fn unknown_addresses(world: &mut World) -> Result<()> {
    world.declare_network()?;
    for vantage in EVERYWHERE {
        world.check_is(vantage, (world.vip(200), 80), Verdict::Rejected)?;
    }
    Ok(())
}

/// The address lives on another machine; one of its ports is a frontend here. The others are none of our business.
fn left_alone(world: &mut World) -> Result<()> {
    let address = world.vip(10);
    let (bits, nodad) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
    world.lab.neighbour.ip(&format!("addr add {address}/{bits} dev lo{nodad}"))?;
    let elsewhere = Server::start(&world.lab.neighbour, "elsewhere", (address, 6443), world.proto)?;
    world.put(&world.spec("web").at(address, 80).to(world.backends()))?;
    for vantage in [Vantage::Client, Vantage::Node, Vantage::Backend(0)] {
        world.check_is(vantage, (address, 6443), Verdict::NotOurs)?;
        let outcome = Client::new(world.host(vantage), world.proto).ask((address, 6443))?;
        ensure!(outcome.by() == Some(elsewhere.name()), "{vantage:?} to the address's true home: {outcome:?}");
        world.check_over(vantage, (address, 80), &["b1", "b2", "b3"])?;
    }
    Ok(())
}

fn host_daemons(world: &mut World) -> Result<()> {
    let any = if world.family == Family::V4 { "0.0.0.0" } else { "::" };
    let _daemon = Server::start(&world.lab.node, "sshd", (any.parse()?, 22), world.proto)?;
    world.put(&world.spec("web").at(world.vip(10), 80).to(world.backends()))?;
    for inside_ranges in [false, true] {
        if inside_ranges {
            world.declare_network()?;
        }
        for vantage in EVERYWHERE {
            let client = world.from(vantage).patience(Duration::from_millis(300));
            let outcome = client.ask((world.vip(10), 22))?;
            ensure!(outcome.by().is_none(), "{vantage:?}: a daemon of the node answered on a VIP: {outcome:?}");
        }
    }
    Ok(())
}
