//! Services and owners that come, change and go, under traffic; and a daemon that dies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use vipd_proto::v1::lease::OnExpiry;
use vipd_proto::v1::status::State;
use vipd_proto::v1::{Feature, Lease, Owner, Protocol, RenewLeaseRequest, endpoint};

use crate::api::in_state;

use crate::conformance::world::{OWNER, PORT, World, eventually};
use crate::conformance::{Case, Over, Vantage};
use crate::traffic::{Client, Proto, Server, Tally};

pub(super) const CASES: &[Case] = &[
    Case::new("endpoints_change_under_traffic_and_nobody_notices", Over::All, changes_under_traffic),
    Case::new("a_service_deleted_under_traffic_refuses_at_once", Over::All, deleted_under_traffic),
    Case::new("a_service_changes_its_protocol", Over::Once, changes_protocol),
    Case::new("a_service_without_frontends_is_declared_and_reached_later", Over::All, frontend_later),
    Case::new("case_038_an_endpoint_reaches_itself_through_its_vip", Over::All, hairpin),
    Case::new("an_expired_lease_withdraws_and_a_renewed_one_serves_again", Over::Once, lease_withdraws),
    Case::new("an_expired_lease_that_reports_withdraws_nothing", Over::Once, lease_reports),
    Case::new("killed_and_started_again_the_services_are_back", Over::All, killed),
    Case::new("stopped_politely_and_started_again_the_services_are_back", Over::Once, stopped),
    Case::new("flows_survive_a_restart", Over::All, flows_survive).needs(&[Feature::FlowsSurviveRestart]),
    Case::new("affinity_survives_a_restart", Over::All, affinity_survives).needs(&[Feature::AffinitySurvivesRestart]),
];

/// Asks without pause from the client while `meanwhile` runs.
fn under_traffic(world: &World, to: (std::net::IpAddr, u16), meanwhile: impl FnOnce() -> Result<()>) -> Result<Tally> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| -> Result<Tally> {
            let mut tally = Tally::default();
            while !over.load(Ordering::Relaxed) {
                tally.add(&world.client().ask(to)?);
            }
            Ok(tally)
        });
        let done = meanwhile();
        over.store(true, Ordering::Relaxed);
        let tally = asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))?;
        done.and(tally)
    })
}

fn changes_under_traffic(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let tally = under_traffic(world, to, || {
        for round in 0..40 {
            let mut endpoints = world.backends();
            let leaving = endpoints.remove(round % 3);
            // A UDP flow of a removed endpoint is cut, with the answer that is on its way: planned work drains first.
            if world.proto == Proto::Udp {
                endpoints.push(in_state(leaving, endpoint::State::Draining));
            }
            world.api.set_endpoints("web", endpoints)?;
        }
        Ok(())
    })?;
    ensure!(
        tally.answered() == tally.total() && tally.total() > 0,
        "40 changes, a working endpoint at every moment: {tally}"
    );
    Ok(())
}

fn deleted_under_traffic(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let tally = under_traffic(world, to, || {
        thread::sleep(Duration::from_millis(100));
        world.api.delete("web")?;
        thread::sleep(Duration::from_millis(100));
        Ok(())
    })?;
    // But a UDP answer on its way when the flow is cut.
    let lost = if world.proto == Proto::Udp { 1 } else { 0 };
    ensure!(tally.count("timed out") <= lost, "between served and refused there is nothing: {tally}");
    ensure!(tally.count("b1") > 0 && tally.answered() < tally.total(), "it was seen served and then not: {tally}");
    world.client().ask_many(5, to)?.is_all("refused")
}

fn changes_protocol(world: &mut World) -> Result<()> {
    world.declare_network()?;
    let to = (world.vip(10), 53);
    world.put(&world.spec("dns").at(to.0, to.1).to(world.backends()))?;
    let address = world.backend(0).address.parse()?;
    let udp = Server::start(&world.lab.backends[0], "b1", (address, PORT), Proto::Udp)?;
    let other = crate::api::Spec::new("dns", Protocol::Udp).at(to.0, to.1);
    world.api.upsert(other.service)?;
    world.api.set_endpoints("dns", vec![world.backend(0)])?;
    let outcome = Client::new(&world.lab.client, Proto::Udp).ask(to)?;
    ensure!(outcome.by() == Some(udp.name()), "now UDP: {outcome:?}");
    Client::new(&world.lab.client, Proto::Tcp).ask_many(3, to)?.is_all("refused")
}

fn frontend_later(world: &mut World) -> Result<()> {
    world.put(&world.spec("web").to(world.backends()))?;
    let to = (world.vip(10), 80);
    world.api.upsert(world.spec("web").at(to.0, to.1).service)?;
    world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])
}

fn hairpin(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![world.backend(0)]))?;
    let tally = world.from(Vantage::Backend(0)).ask_many(5, to)?;
    tally.is_all("b1")?;
    let own = world.address(Vantage::Backend(0));
    ensure!(!tally.was_seen(own), "an endpoint that reaches itself must see another source than itself");
    Ok(())
}

fn leased(on_expiry: OnExpiry) -> Owner {
    let ttl = Some(pbjson_types::Duration { seconds: 1, nanos: 0 });
    let lease = Some(Lease { ttl, on_expiry: on_expiry.into() });
    Owner { name: OWNER.to_owned(), lease, ..Default::default() }
}

fn state(world: &World) -> Result<State> {
    Ok(world.api.get("web")?.status.unwrap_or_default().state())
}

fn lease_withdraws(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    world.api.set_owner(leased(OnExpiry::Withdraw))?;
    eventually(Duration::from_secs(4), || {
        let outcome = world.client().patience(Duration::from_millis(300)).ask(to)?;
        ensure!(outcome.by().is_none(), "the lease is over: {outcome:?}");
        ensure!(state(world)? == State::Withdrawn, "{:?}", state(world)?);
        Ok(())
    })?;
    let renew = RenewLeaseRequest { owner: OWNER.to_owned(), session: 0 };
    world.api.wait(world.api.dataplane().renew_lease(renew))?;
    eventually(Duration::from_millis(900), || {
        let outcome = world.client().patience(Duration::from_millis(300)).ask(to)?;
        ensure!(outcome.by().is_some(), "renewed: {outcome:?}");
        Ok(())
    })
}

fn lease_reports(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    world.api.set_owner(leased(OnExpiry::Report))?;
    thread::sleep(Duration::from_millis(1800));
    world.check(Vantage::Client, to, 6)?;
    let problems = world.api.get("web")?.status.unwrap_or_default().problems;
    let said = problems.iter().any(|problem| problem.code() == vipd_proto::v1::problem::Code::LeaseExpired);
    ensure!(said, "an expired lease is reported: {problems:?}");
    Ok(())
}

fn killed(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let before = world.api.info()?;
    for _ in 0..2 {
        world.restart()?;
        eventually(Duration::from_secs(5), || {
            world.client().patience(Duration::from_millis(500)).ask_many(3, to).and_then(|tally| {
                ensure!(tally.count("refused") + tally.count("timed out") == 0, "{tally}");
                Ok(())
            })
        })?;
        world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])?;
    }
    let after = world.api.info()?;
    ensure!(after.digest == before.digest, "another declared state: {} and {}", before.digest, after.digest);
    ensure!(after.epoch == before.epoch, "another epoch: {} and {}", before.epoch, after.epoch);
    Ok(())
}

fn stopped(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    world.daemon.signal(Signal::SIGTERM)?;
    let status = world.daemon.stop()?;
    ensure!(status.success(), "SIGTERM: {status}");
    world.start_again()?;
    world.check_over(Vantage::Client, to, &["b1", "b2", "b3"])
}

fn flows_survive(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()))?;
    let held = world.hold(6, to)?;
    world.restart()?;
    for (flow, by) in &held {
        let outcome = flow.ask();
        ensure!(outcome.by() == Some(by), "a flow at {by} over a restart: {outcome:?}");
    }
    Ok(())
}

fn affinity_survives(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(world.backends()).affine(300))?;
    let first = world.client().ask_many(2, to)?;
    world.restart()?;
    world.client().ask_many(6, to)?.is_all(&first.order()[0].clone())
}
