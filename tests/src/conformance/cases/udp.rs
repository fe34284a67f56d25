//! What only UDP can get wrong: the reply's source, sockets that stay, senders that are never answered.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use vipd_proto::v1::Feature;

use crate::api::node_port;
use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::lab::Family;
use crate::traffic::Flow;

pub(super) const CASES: &[Case] = &[
    Case::new("case_111_a_reply_leaves_from_the_address_that_was_asked", Over::Udp, reply_source),
    Case::new("case_111_node_port_replies_leave_from_the_address_that_was_asked", Over::Udp, node_port_reply)
        .needs(&[Feature::NodePort]),
    Case::new("one_socket_one_endpoint", Over::Udp, one_socket),
    Case::new("case_001_a_socket_that_stays_open_follows_its_service", Over::Udp, follows),
    Case::new("case_002_a_sender_that_came_too_early_is_served_in_the_end", Over::Udp, too_early),
    Case::new("case_003_a_one_way_sender_stops_reaching_endpoints_that_left", Over::Udp, one_way_to_none),
    Case::new("case_010_an_answer_in_flight_survives_draining", Over::Udp, answer_in_flight),
    Case::new("case_011_a_node_port_sender_with_a_fixed_port_follows", Over::Udp, fixed_port)
        .needs(&[Feature::NodePort]),
    Case::new("datagrams_up_to_the_mtu_arrive_whole", Over::Udp, sizes),
];

/// A connected socket: the kernel drops what comes from any other address, so an answer proves its source.
fn socket(world: &World, to: (std::net::IpAddr, u16)) -> Result<Flow> {
    world.client().open(to)?.map_err(|end| anyhow!("{}", end.word()))
}

/// Several addresses on one service, on a node with several addresses.
fn reply_source(world: &mut World) -> Result<()> {
    let web = (10..14).fold(world.spec("dns"), |spec, n| spec.at(world.vip(n), 53));
    world.put(&web.to(world.backends()))?;
    for n in 10..14 {
        for vantage in [Vantage::Client, Vantage::Neighbour, Vantage::Node, Vantage::Backend(0)] {
            world.check(vantage, (world.vip(n), 53), 3)?;
        }
    }
    Ok(())
}

fn node_port_reply(world: &mut World) -> Result<()> {
    world.put(&world.spec("dns").frontend(node_port(30_053, &[])).to(world.backends()))?;
    // The node's address on the other link: the kernel, left to itself, would answer from the nearer one.
    let [near, far] = match world.family {
        Family::V4 => ["172.16.1.1", "172.16.2.1"],
        Family::V6 => ["fd10:1::1", "fd10:2::1"],
    };
    for address in [near, far] {
        for vantage in [Vantage::Client, Vantage::Neighbour] {
            world.check(vantage, (address.parse()?, 30_053), 3)?;
        }
    }
    Ok(())
}

fn one_socket(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(world.backends()))?;
    for _ in 0..4 {
        let flow = socket(world, to)?;
        let first = flow.ask();
        let home = first.by().context("no answer")?;
        for _ in 0..6 {
            let outcome = flow.ask();
            ensure!(outcome.by() == Some(home), "one socket, at {home} and then: {outcome:?}");
        }
    }
    Ok(())
}

fn follows(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let (flow, bystander) = (socket(world, to)?, socket(world, to)?);
    ensure!(flow.ask().by() == Some("b1") && bystander.ask().by() == Some("b1"), "b1 is the only one");
    for n in [1, 2, 0] {
        world.api.set_endpoints("dns", vec![world.backend(n)])?;
        let outcome = flow.ask();
        ensure!(outcome.by() == Some(world.servers[n].name()), "the first datagram after the answer: {outcome:?}");
    }
    Ok(())
}

fn too_early(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1))?;
    let client = world.client().port(40_001).patience(Duration::from_millis(300));
    for _ in 0..5 {
        let outcome = client.ask(to)?;
        ensure!(outcome.by().is_none(), "{outcome:?}");
    }
    world.api.set_endpoints("dns", vec![world.backend(1)])?;
    let outcome = client.ask(to)?;
    ensure!(outcome.by() == Some("b2"), "the same port, once there is an endpoint: {outcome:?}");
    Ok(())
}

/// A sender that nobody answers: its flow is never "established", and must go all the same.
fn one_way_to_none(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("statsd").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let flow = socket(world, to)?;
    let b1 = &world.servers[0];
    let before = b1.served();
    for _ in 0..20 {
        flow.send("ECHO one way")?;
    }
    eventually(Duration::from_secs(2), || {
        ensure!(b1.served() - before == 20, "{} of 20 arrived", b1.served() - before);
        Ok(())
    })?;
    world.api.set_endpoints("statsd", Vec::new())?;
    let before = b1.served();
    for _ in 0..20 {
        // Refusals come back as errors of the next send; both are fine, arriving is not.
        let _ = flow.send("ECHO one way");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(100));
    ensure!(b1.served() == before, "{} datagrams reached an endpoint that was gone", b1.served() - before);
    world.api.set_endpoints("statsd", vec![world.backend(1)])?;
    let before = world.servers[1].served();
    eventually(Duration::from_secs(2), || {
        let _ = flow.send("ECHO one way");
        ensure!(world.servers[1].served() > before, "nothing reaches the new endpoint");
        Ok(())
    })
}

fn answer_in_flight(world: &mut World) -> Result<()> {
    use crate::api::in_state;
    use vipd_proto::v1::endpoint::State;
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let flow = socket(world, to)?;
    flow.send("WAIT 300")?;
    thread::sleep(Duration::from_millis(50));
    let leaving = in_state(world.backend(0), State::Draining);
    world.api.set_endpoints("dns", vec![leaving, world.backend(1)])?;
    let answer = flow.line().context("the answer in flight was lost")?;
    ensure!(answer.starts_with("b1 "), "{answer}");
    world.check(Vantage::Client, to, 6)?.is_all("b2")
}

fn fixed_port(world: &mut World) -> Result<()> {
    let to = (world.address(Vantage::Node), 30_053);
    world.put(&world.spec("dns").frontend(node_port(to.1, &[])).to(vec![world.backend(0)]))?;
    let sender = world.client().port(40_002);
    for n in [0, 1, 2] {
        world.api.set_endpoints("dns", vec![world.backend(n)])?;
        let outcome = sender.ask(to)?;
        ensure!(outcome.by() == Some(world.servers[n].name()), "port 40002 after the change: {outcome:?}");
    }
    Ok(())
}

fn sizes(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(world.backends()))?;
    let flow = socket(world, to)?;
    for length in [1, 511, 512, 1200, 1400] {
        let text = "x".repeat(length);
        flow.send(&format!("ECHO {text}"))?;
        let answer = flow.line().with_context(|| format!("{length} bytes"))?;
        ensure!(answer.ends_with(&format!(" {text}")), "{length} bytes came back as {}", answer.len());
    }
    Ok(())
}
