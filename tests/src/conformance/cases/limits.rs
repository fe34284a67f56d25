//! Limits on connections: how many, and how long idle.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::{Endpoint, Feature};

use crate::conformance::world::{World, eventually};
use crate::conformance::{Case, Over, Vantage};

pub(super) const CASES: &[Case] = &[
    Case::new("max_connections_of_an_endpoint_are_kept", Over::Tcp, one_full).needs(&[Feature::MaxConnections]),
    Case::new("a_connection_that_ends_makes_room", Over::Tcp, room_again).needs(&[Feature::MaxConnections]),
    Case::new("an_idle_connection_is_ended", Over::Tcp, idle).needs(&[Feature::IdleTimeout]),
];

fn limited(world: &World, n: usize, most: u32) -> Endpoint {
    Endpoint { max_connections: most, ..world.backend(n) }
}

fn one_full(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![limited(world, 0, 2), world.backend(1)]))?;
    let held = world.hold(10, to)?;
    let at_b1 = held.iter().filter(|(_, by)| by == "b1").count();
    ensure!(at_b1 == 2, "max_connections 2, held at b1: {at_b1}");
    for (flow, by) in &held {
        ensure!(flow.ask().by() == Some(by), "a held flow at {by} was lost");
    }
    Ok(())
}

/// With every endpoint full the next connection is not served; with one gone, the next is.
fn room_again(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    world.put(&world.spec("web").at(to.0, to.1).to(vec![limited(world, 0, 1), limited(world, 1, 1)]))?;
    let mut held = world.hold(2, to)?;
    let client = || world.client().patience(Duration::from_millis(700));
    let third = client().ask(to)?;
    ensure!(third.by().is_none(), "two endpoints with one connection each, and a third was served: {third:?}");
    let (freed, by) = held.pop().context("nothing held")?;
    drop(freed);
    eventually(Duration::from_secs(3), || {
        let outcome = client().ask(to)?;
        ensure!(outcome.by() == Some(&by), "room at {by}: {outcome:?}");
        Ok(())
    })
}

fn idle(world: &mut World) -> Result<()> {
    let to = (world.vip(10), 80);
    let timeout = Some(pbjson_types::Duration { seconds: 1, nanos: 0 });
    let web = world.spec("web").at(to.0, to.1).to(world.backends());
    world.put(&web.with(|service| service.idle_timeout = timeout))?;
    let (idle, _) = world.established(to)?;
    let (busy, by) = world.established(to)?;
    for _ in 0..12 {
        thread::sleep(Duration::from_millis(250));
        let outcome = busy.ask();
        ensure!(outcome.by() == Some(&by), "a connection in use was ended: {outcome:?}");
    }
    let outcome = idle.ask();
    ensure!(outcome.by().is_none(), "3 s idle with an idle time-out of 1 s, and still there: {outcome:?}");
    world.check(Vantage::Client, to, 3).map(|_| ())
}
