//! Connection tracking: what must be forgotten, what must not, and what it does not understand.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use vipd_proto::v1::Feature;

use crate::api::node_port;
use crate::conformance::world::World;
use crate::conformance::{Case, Over, Vantage};
use crate::traffic::{Flow, Outcome, stray};

pub(super) const CASES: &[Case] = &[
    Case::new("case_004_a_change_that_the_daemon_died_in_is_finished_at_its_start", Over::Udp, died_in_a_change),
    Case::new("case_004_an_endpoint_that_left_while_the_daemon_was_dead_gets_nothing", Over::Udp, left_while_dead),
    Case::new("case_007_flows_of_other_services_of_the_address_stay", Over::Udp, others_stay),
    Case::new("case_009_a_sender_that_ran_before_its_service_is_served", Over::Udp, ran_before),
    Case::new("case_009_a_sender_that_ran_before_its_node_port_is_served", Over::Udp, ran_before_node_port)
        .needs(&[Feature::NodePort]),
    Case::new("case_013_a_stray_segment_resets_nothing", Over::Tcp, stray_segment),
];

fn socket(world: &World, to: (IpAddr, u16)) -> Result<Flow> {
    world.client().open(to)?.map_err(|end| anyhow!("{}", end.word()))
}

/// Killed at any moment of a call: afterwards the endpoints are those of before or of after, for old flows too.
fn died_in_a_change(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let flow = socket(world, to)?;
    ensure!(flow.ask().by() == Some("b1"), "b1 is the only one");
    for round in 1..=6_usize {
        let (api, next) = (world.api.clone(), world.backend(round % 3));
        let call = thread::spawn(move || api.set_endpoints("dns", vec![next]));
        thread::sleep(Duration::from_micros(300 * round as u64));
        world.daemon.kill()?;
        let answer = call.join().map_err(|_| anyhow!("the caller panicked"))?;
        world.start_again()?;
        let declared = world.api.get("dns").map_err(|status| anyhow!("GetService: {status}"))?;
        let address = declared.endpoints.first().context("no endpoint is left")?.address.clone();
        let home = world.servers.iter().find(|server| server.address().ip().to_string() == address);
        let home = home.context("an endpoint that nobody declared")?;
        ensure!(answer.is_err() || home.name() == world.servers[round % 3].name(), "acknowledged, and lost");
        // The first datagram may hear what became of the one before it.
        let outcomes = [flow.ask(), flow.ask()];
        ensure!(outcomes[1].by() == Some(home.name()), "round {round}: {address} is declared; {outcomes:?}");
    }
    Ok(())
}

/// The orchestrator went on while vipd was dead, and says so as soon as it can.
fn left_while_dead(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let flow = socket(world, to)?;
    ensure!(flow.ask().by() == Some("b1"), "b1 is the only one");
    world.restart()?;
    world.api.set_endpoints("dns", vec![world.backend(1)])?;
    let outcomes = [flow.ask(), flow.ask()];
    ensure!(outcomes[1].by() == Some("b2"), "after SetEndpoints: {outcomes:?}");
    Ok(())
}

/// Two services on one address, by different ports: the flows of one are none of the other's business.
fn others_stay(world: &mut World) -> Result<()> {
    let (dns, ntp) = ((world.vip(10), 53), (world.vip(10), 123));
    world.put(&world.spec("dns").at(dns.0, dns.1).to(world.backends()))?;
    world.put(&world.spec("ntp").at(ntp.0, ntp.1).to(world.backends()))?;
    let flows: Vec<_> = (0..6).map(|_| socket(world, ntp)).collect::<Result<_>>()?;
    let homes: Vec<_> = flows.iter().map(|flow| flow.ask().word().to_owned()).collect();
    for round in 0..6 {
        world.api.set_endpoints("dns", vec![world.backend(round % 3)])?;
        for (flow, home) in flows.iter().zip(&homes) {
            let outcome = flow.ask();
            ensure!(outcome.word() == home, "a flow of ntp was at {home}; after a change of dns: {outcome:?}");
        }
    }
    Ok(())
}

fn ran_before(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 53);
    sends_all_along(world, to, |world| world.put(&world.spec("dns").at(to.0, to.1).to(vec![world.backend(1)])))
}

fn ran_before_node_port(world: &mut World) -> Result<()> {
    let to = (world.address(Vantage::Node), 30_053);
    let spec = world.spec("dns").frontend(node_port(to.1, &[])).to(vec![world.backend(1)]);
    sends_all_along(world, to, |world| world.put(&spec))
}

/// A sender with one port that never pauses: no entry that it makes on the way may outlive the call.
fn sends_all_along(world: &World, to: (IpAddr, u16), declare: impl FnOnce(&World) -> Result<()> + Send) -> Result<()> {
    let flow = socket(world, to)?;
    thread::scope(|scope| {
        let declaring = scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            declare(world)
        });
        while !declaring.is_finished() {
            // Refusals come back as errors of the next send.
            let _ = flow.send("ECHO early");
            thread::sleep(Duration::from_millis(1));
        }
        declaring.join().map_err(|_| anyhow!("the caller panicked"))?
    })?;
    let before = world.servers[1].served();
    flow.send("ECHO after the answer").or_else(|_| flow.send("ECHO after the answer"))?;
    thread::sleep(Duration::from_millis(100));
    ensure!(world.servers[1].served() > before, "a datagram after the answer did not reach the endpoint");
    Ok(())
}

/// The endpoint's host repeats something from far outside the window. Untranslated, it would make the client reset the
/// endpoint's half of a healthy connection.
fn stray_segment(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let (flow, _) = world.established(to)?;
    let b1 = &world.lab.backends[0];
    let listener = stray::Listener::on(b1)?;
    let Outcome::Answered { seen, .. } = flow.request("ECHO again") else {
        bail!("no answer before the stray segment");
    };
    let server: SocketAddr = world.servers[0].address();
    let position = listener.position(seen, server)?;
    let client = flow.socket().local_addr()?.as_socket().context("no address")?;
    for _ in 0..3 {
        stray::send(b1, server, SocketAddr::new(client.ip(), seen.port()), position)?;
        thread::sleep(Duration::from_millis(20));
    }
    let after = flow.request("ECHO and again");
    ensure!(after.by() == Some("b1"), "after a stray segment of the endpoint: {after:?}");
    Ok(())
}
