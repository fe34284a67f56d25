//! What happens to established flows of an endpoint that leaves: the table "Endpoint life" of the API.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::drain::OnExpiry;
use vipd_proto::v1::endpoint::State;
use vipd_proto::v1::{Drain, Endpoint, Feature};

use crate::api::{in_state, weighted};
use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::traffic::{Flow, Proto};

pub(super) const CASES: &[Case] = &[
    Case::new("a_draining_endpoint_keeps_its_flows_and_gets_no_new_ones", Over::All, draining),
    Case::new("a_removed_endpoint_keeps_tcp_and_loses_udp", Over::All, removed),
    Case::new("an_endpoint_that_is_not_ready_keeps_tcp_and_loses_udp", Over::All, not_ready),
    Case::new("weight_0_keeps_established_flows", Over::All, weight_zero).needs(&[Feature::Weight]),
    Case::new("a_drain_deadline_with_leave_ends_nothing", Over::Tcp, deadline_leaves),
    Case::new("a_drain_deadline_with_reset_ends_flows", Over::Tcp, deadline_resets).needs(&[Feature::DrainReset]),
    Case::new("an_endpoints_own_drain_comes_before_the_services", Over::Tcp, own_drain).needs(&[Feature::DrainReset]),
    Case::new("repeating_a_call_does_not_restart_a_drain", Over::Tcp, repeated).needs(&[Feature::DrainReset]),
    Case::new("an_endpoint_that_returns_keeps_its_flows", Over::Tcp, returns).needs(&[Feature::DrainReset]),
    Case::new("a_changed_definition_keeps_established_flows", Over::All, redefined),
];

/// Three back ends, a flow to one of them, and that one's index.
fn established(world: &World, drain: Option<Drain>) -> Result<(Flow, usize)> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).with(|service| service.drain = drain))?;
    let (flow, by) = world.established(to)?;
    let index = world.servers.iter().position(|server| server.name() == by).context("a stranger answered")?;
    Ok((flow, index))
}

/// The list with one endpoint changed.
fn but(world: &World, index: usize, change: impl FnOnce(Endpoint) -> Option<Endpoint>) -> Vec<Endpoint> {
    let mut endpoints = world.backends();
    let leaving = endpoints.remove(index);
    endpoints.extend(change(leaving));
    endpoints
}

/// The flow is still where it was, and no new flow goes there.
fn stays(world: &World, flow: &Flow, index: usize) -> Result<()> {
    let home = world.servers[index].name();
    let outcome = flow.ask();
    ensure!(outcome.by() == Some(home), "the established flow at {home}: {outcome:?}");
    let tally = world.check(Vantage::Client, (world.vip(10), 80), 12)?;
    ensure!(tally.count(home) == 0, "{home} leaves and got new flows: {tally}");
    let outcome = flow.ask();
    ensure!(outcome.by() == Some(home), "the established flow at {home}, later: {outcome:?}");
    Ok(())
}

/// TCP stays; a UDP flow is another endpoint's from the first datagram after the answer.
fn stays_if_tcp(world: &World, flow: &Flow, index: usize) -> Result<()> {
    if world.proto == Proto::Tcp {
        return stays(world, flow, index);
    }
    let home = world.servers[index].name();
    let before = world.servers[index].served();
    for _ in 0..5 {
        let outcome = flow.ask();
        ensure!(outcome.by().is_some_and(|by| by != home), "the same UDP socket after {home} left: {outcome:?}");
    }
    let late = world.servers[index].served() - before;
    ensure!(late == 0, "{late} datagrams reached {home} after it had left");
    Ok(())
}

fn draining(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, None)?;
    world.api.set_endpoints("web", but(world, index, |leaving| Some(in_state(leaving, State::Draining))))?;
    stays(world, &flow, index)
}

fn removed(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, None)?;
    world.api.set_endpoints("web", but(world, index, |_| None))?;
    stays_if_tcp(world, &flow, index)
}

fn not_ready(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, None)?;
    world.api.set_endpoints("web", but(world, index, |leaving| Some(in_state(leaving, State::NotReady))))?;
    stays_if_tcp(world, &flow, index)
}

fn weight_zero(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, None)?;
    world.api.set_endpoints("web", but(world, index, |leaving| Some(weighted(leaving, 0))))?;
    stays(world, &flow, index)
}

fn within(seconds: i64, on_expiry: OnExpiry) -> Drain {
    let timeout = Some(pbjson_types::Duration { seconds, nanos: 0 });
    Drain { timeout, on_expiry: on_expiry.into() }
}

fn deadline_leaves(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, Some(within(1, OnExpiry::Leave)))?;
    world.api.set_endpoints("web", but(world, index, |_| None))?;
    thread::sleep(Duration::from_millis(1800));
    stays(world, &flow, index)
}

/// The flow lives now and ends soon after the deadline.
fn ends(flow: &Flow) -> Result<()> {
    ensure!(flow.ask().by().is_some(), "the flow ended before its deadline");
    eventually(Duration::from_secs(4), || {
        thread::sleep(Duration::from_millis(100));
        let outcome = flow.ask();
        ensure!(outcome.word() == "reset", "still there after the deadline: {outcome:?}");
        Ok(())
    })
}

fn deadline_resets(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, Some(within(1, OnExpiry::Reset)))?;
    world.api.set_endpoints("web", but(world, index, |_| None))?;
    ends(&flow)?;
    // Others are not touched.
    world.check(Vantage::Client, (world.vip(10), 80), 6).map(|_| ())
}

fn own_drain(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, Some(within(3600, OnExpiry::Leave)))?;
    let drain = Some(within(1, OnExpiry::Reset));
    let leaving = |endpoint| Some(Endpoint { drain, ..in_state(endpoint, State::Draining) });
    world.api.set_endpoints("web", but(world, index, leaving))?;
    ends(&flow)
}

fn repeated(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, Some(within(2, OnExpiry::Reset)))?;
    let gone = but(world, index, |_| None);
    for _ in 0..30 {
        world.api.set_endpoints("web", gone.clone())?;
        thread::sleep(Duration::from_millis(100));
    }
    let outcome = flow.ask();
    ensure!(outcome.word() == "reset", "3 s after it left, with repeats, a 2 s drain: {outcome:?}");
    Ok(())
}

fn returns(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, Some(within(1, OnExpiry::Reset)))?;
    world.api.set_endpoints("web", but(world, index, |_| None))?;
    world.api.set_endpoints("web", world.backends())?;
    thread::sleep(Duration::from_millis(1800));
    let outcome = flow.ask();
    ensure!(outcome.by() == Some(world.servers[index].name()), "left and returned in time: {outcome:?}");
    world.check_over(Vantage::Client, (world.vip(10), 80), &["b1", "b2", "b3"])
}

/// Another frontend, other refusals, another group: nothing that concerns the flows.
fn redefined(world: &mut World) -> Result<()> {
    let (flow, index) = established(world, None)?;
    let web = world.spec("web").at(world.vip(10), 80).at(world.vip(11), 81);
    world.api.upsert(web.with(|service| service.group = "shop/web".to_owned()).service)?;
    let outcome = flow.ask();
    ensure!(outcome.by() == Some(world.servers[index].name()), "after an unrelated change: {outcome:?}");
    world.check_over(Vantage::Client, (world.vip(11), 81), &["b1", "b2", "b3"])
}
