//! Node ports: a port on the node's own addresses, loopback included, and which of them.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use vipd_proto::v1::Feature;
use vipd_proto::v1::Frontend;
use vipd_proto::v1::frontend::Policy;

use crate::api::{local, node_port};
use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::Family;

pub(super) const CASES: &[Case] = &[
    Case::new("a_node_port_is_served_on_every_address_of_the_node", Over::All, every_address)
        .needs(&[Feature::NodePort]),
    Case::new("case_066_a_node_port_is_served_on_loopback", Over::All, loopback).needs(&[Feature::NodePort]),
    Case::new("case_070_a_node_port_on_loopback_ignores_policy_local", Over::All, loopback_local)
        .needs(&[Feature::NodePort, Feature::PolicyLocal]),
    Case::new("case_073_a_node_port_is_served_only_on_the_chosen_addresses", Over::All, chosen_addresses)
        .needs(&[Feature::NodePort]),
    Case::new("case_075_a_node_port_follows_addresses_that_come_and_go", Over::All, follows)
        .needs(&[Feature::NodePort]),
    Case::new("case_028_a_node_port_is_of_one_protocol", Over::All, one_protocol).needs(&[Feature::NodePort]),
    Case::new("case_071_loopback_is_not_opened_to_the_neighbour", Over::Once, loopback_is_private)
        .needs(&[Feature::NodePort]),
    Case::new("a_vip_wins_over_a_node_port_on_the_same_address_and_port", Over::All, vip_wins)
        .needs(&[Feature::NodePort]),
];

const NODE_PORT: u16 = 30_080;

/// The node's address on the client's link, and on the neighbour's.
fn node_addresses(world: &World) -> [IpAddr; 2] {
    match world.family {
        Family::V4 => [IpAddr::from([172, 16, 1, 1]), IpAddr::from([172, 16, 2, 1])],
        Family::V6 => ["fd10:1::1", "fd10:2::1"].map(|text| text.parse().unwrap_or(world.address(Vantage::Node))),
    }
}

fn localhost(world: &World) -> IpAddr {
    match world.family {
        Family::V4 => std::net::Ipv4Addr::LOCALHOST.into(),
        Family::V6 => std::net::Ipv6Addr::LOCALHOST.into(),
    }
}

fn declare(world: &World, addresses: &[&str]) -> Result<()> {
    world.put(&world.spec("web").frontend(node_port(NODE_PORT, addresses)).to(world.backends()))
}

fn every_address(world: &mut World) -> Result<()> {
    declare(world, &[])?;
    for address in node_addresses(world) {
        for vantage in [Vantage::Client, Vantage::Neighbour, Vantage::Node, Vantage::Backend(0)] {
            world.check_over(vantage, (address, NODE_PORT), &["b1", "b2", "b3"])?;
        }
    }
    Ok(())
}

fn loopback(world: &mut World) -> Result<()> {
    declare(world, &[])?;
    let tally = world.from(Vantage::Node).ask_many(30, (localhost(world), NODE_PORT))?;
    for name in ["b1", "b2", "b3"] {
        ensure!(tally.count(name) > 0, "loopback: {tally}");
    }
    // What is not served there is refused, not silent.
    world.from(Vantage::Node).ask_many(2, (localhost(world), NODE_PORT + 1))?.is_all("refused")
}

/// Endpoints only elsewhere, policy LOCAL: a client on the node is served all the same.
fn loopback_local(world: &mut World) -> Result<()> {
    let frontend = Frontend { policy: Policy::Local.into(), ..node_port(NODE_PORT, &[]) };
    world.put(&world.spec("web").frontend(frontend).to(vec![world.backend(1)]))?;
    for address in [localhost(world), node_addresses(world)[0]] {
        world.from(Vantage::Node).ask_many(4, (address, NODE_PORT))?.is_all("b2")?;
    }
    Ok(())
}

fn chosen_addresses(world: &mut World) -> Result<()> {
    declare(world, &["172.16.1.0/24", "fd10:1::/64"])?;
    let [chosen, other] = node_addresses(world);
    world.check_over(Vantage::Client, (chosen, NODE_PORT), &["b1", "b2", "b3"])?;
    for vantage in [Vantage::Client, Vantage::Neighbour, Vantage::Node] {
        world.from(vantage).ask_many(2, (other, NODE_PORT))?.is_all("refused")?;
    }
    world.from(Vantage::Node).ask_many(2, (localhost(world), NODE_PORT))?.is_all("refused")
}

fn follows(world: &mut World) -> Result<()> {
    declare(world, &[])?;
    let (text, bits) = if world.family == Family::V4 { ("172.16.1.9", 24) } else { ("fd10:1::9", 64) };
    let new: IpAddr = text.parse()?;
    let nodad = if new.is_ipv6() { " nodad" } else { "" };
    world.lab.node.ip(&format!("addr add {text}/{bits} dev client{nodad}"))?;
    let patient = || world.client().patience(Duration::from_millis(500));
    eventually(Duration::from_secs(3), || {
        let outcome = patient().ask((new, NODE_PORT))?;
        ensure!(outcome.by().is_some(), "the new address: {}", outcome.word());
        Ok(())
    })?;
    world.lab.node.ip(&format!("addr del {text}/{bits} dev client"))?;
    eventually(Duration::from_secs(3), || {
        let outcome = patient().ask((new, NODE_PORT))?;
        ensure!(outcome.by().is_none(), "an address that is gone: {}", outcome.word());
        Ok(())
    })?;
    world.check_over(Vantage::Client, (node_addresses(world)[0], NODE_PORT), &["b1", "b2", "b3"])
}

/// The same number in both protocols: two services, each with endpoints of its own.
fn one_protocol(world: &mut World) -> Result<()> {
    use crate::api::Spec;
    use crate::traffic::Proto;
    use vipd_proto::v1::Protocol;
    declare(world, &[])?;
    let other = if world.proto == Proto::Tcp { Protocol::Udp } else { Protocol::Tcp };
    let frontend = Frontend { policy: Policy::Local.into(), ..node_port(NODE_PORT, &[]) };
    world.put(&Spec::new("other", other).frontend(frontend).to(vec![local(world.backend(0))]))?;
    world.check_over(Vantage::Client, (node_addresses(world)[0], NODE_PORT), &["b1", "b2", "b3"])
}

/// CVE-2020-8558: a neighbour that routes 127.0.0.1 to the node must not reach what listens on loopback only.
fn loopback_is_private(world: &mut World) -> Result<()> {
    use crate::traffic::{Client, Server};
    declare(world, &[])?;
    let private = Server::start(&world.lab.node, "private", (localhost(world), 9999), world.proto)?;
    let neighbour = &world.lab.neighbour;
    neighbour.sysctl("net/ipv4/conf/eth0/route_localnet", "1")?;
    neighbour.sysctl("net/ipv4/conf/all/route_localnet", "1")?;
    neighbour.ip("route flush table local 127.0.0.0/8")?;
    neighbour.ip("route add 127.0.0.1/32 via 172.16.2.1 dev eth0")?;
    for port in [private.address().port(), NODE_PORT] {
        let client = Client::new(neighbour, world.proto).patience(Duration::from_millis(700));
        let outcome = client.ask((localhost(world), port))?;
        ensure!(outcome.by().is_none(), "the neighbour reached port {port} of the node's loopback: {outcome:?}");
    }
    Ok(())
}

/// They meet when the VIP becomes an address of the node, as keepalived and its like do it.
fn vip_wins(world: &mut World) -> Result<()> {
    let (vip, own) = ((world.vip(10), NODE_PORT), (node_addresses(world)[0], NODE_PORT));
    world.put(&world.spec("port").frontend(node_port(NODE_PORT, &[])).to(vec![world.backend(0)]))?;
    world.put(&world.spec("vip").at(vip.0, vip.1).to(vec![world.backend(1)]))?;
    let (bits, nodad) = if vip.0.is_ipv4() { (32, "") } else { (128, " nodad") };
    world.lab.node.ip(&format!("addr add {}/{bits} dev lo{nodad}", vip.0))?;
    for _ in 0..5 {
        world.client().ask_many(4, vip)?.is_all("b2")?;
        thread::sleep(Duration::from_millis(100));
    }
    world.check(Vantage::Client, vip, 4)?.is_all("b2")?;
    world.check(Vantage::Client, own, 4)?.is_all("b1")?;
    world.api.delete("vip")?;
    world.check(Vantage::Client, vip, 4)?.is_all("b1")
}
